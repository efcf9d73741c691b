"""`DefaultTrainer`: build a training from a config; every ``build_`` method can be overridden.

Before that, the config's ``train`` and ``graph`` get defaults and are checked, and the log starts.
"""

import argparse
import logging
import math
import sys
from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, ListConfig, open_dict
from torch import nn

from stoker import seed_all
from stoker.config.run_section import batch_sizes
from stoker.core import dist
from stoker.core.log import LogFile
from stoker.dialects.adapter import with_names
from stoker.dialects.libai import events, hooks, models
from stoker.dialects.libai.config import (
    LazyConfig,
    accepts,
    as_config,
    get_config,
    instantiate,
    try_get_key,
)
from stoker.dialects.libai.distributed import device, layout_of, setup_dist_util
from stoker.dialects.libai.evaluation import inference_on_dataset, print_csv_format
from stoker.dialects.libai.scheduler import build_lr_scheduler
from stoker.dialects.libai.trainer import EagerTrainer, GraphTrainer, TrainerBase, plain_batch
from stoker.dialects.script_step import call
from stoker.storage import local_path

_log = logging.getLogger("libai.default")


# The sections ``train`` and ``graph``: defaults, unknown keys, and limits

_MISSPELLED = 0.88
"""How similar a misspelled key is to the one that is meant: "log_perod"."""

_WRITTEN = {
    "train": "samples warmup_iter",
    "train.dist": "num_nodes num_gpus_per_node auto_pipeline_stage_id actual_pipeline_stage_id "
    "device_type",
}
"""Keys without a default, which a trainer writes into the config."""

_LIMITS: dict[str, tuple[tuple[Any, ...], str]] = {
    "train.consumed_train_samples": ((0,), "checkpoints store the position in the data"),
    "train.consumed_valid_samples": ((0,), "every evaluation starts at the first sample"),
    "train.train_samples": ((None,), "set train.train_iter or train.train_epoch"),
    "train.nccl_fusion_threshold_mb": ((16, 0), "it belongs to OneFlow"),
    "train.nccl_fusion_max_ops": ((24, 0), "it belongs to OneFlow"),
    "train.zero_optimization.stage": ((1, 2, 3), "these are the stages of ZeRO"),
    "graph.debug": ((-1,), "set TORCH_LOGS in the environment instead"),
    "graph.auto_parallel.enabled": ((False,), "set train.dist instead"),
    "graph.global_mode.enabled": ((False,), "it belongs to OneFlow"),
}
"""The values of options that Stoker cannot or need not do, and why."""


def prepared(cfg: Any) -> Any:
    """Fill in defaults and batch sizes, check all options, and return the ``train`` section."""
    cfg._set_flag("allow_objects", True)
    unknown: list[str] = []
    with open_dict(cfg):
        for name, file in (("train", "common/train.py"), ("graph", "common/models/graph.py")):
            if cfg.get(name) is None:
                cfg[name] = as_config({})
            unknown += _filled(cfg[name], get_config(file)[name], name)
    if unknown:
        _log.warning(f"the trainer does not use {', '.join(unknown)}")
    for path, (values, why) in _LIMITS.items():
        if (value := try_get_key(cfg, path)) not in values:
            allowed = " or ".join(map(repr, values))
            raise ValueError(f"{path} is {value!r}, expected {allowed}: {why}")
    train = cfg["train"]
    setup_dist_util(train["dist"])
    names = ("train_micro_batch_size", "num_accumulation_steps", "global_batch_size")
    micro, steps, total = (train[name] for name in names)
    sizes = batch_sizes(micro, steps, total, layout_of(train).data_ranks, names, "train")
    if sizes[0] is None:
        raise ValueError("set train.train_micro_batch_size or train.global_batch_size")
    train.update(zip(names, sizes, strict=True))
    train["samples"] = train["train_iter"] * train["global_batch_size"]
    return train


def _filled(given: Any, known: Any, at: str) -> Iterator[str]:
    """Add missing keys to a section, and yield those that it should not have.

    A misspelled key is an error. Any other may be a key of the script itself.
    """
    for name in [name for name in given if name not in known]:
        if name in _WRITTEN.get(at, "").split():
            continue
        if near := get_close_matches(name, list(known), n=1, cutoff=_MISSPELLED):
            raise ValueError(f"{at} has no {name!r}; did you mean {near[0]!r}?")
        yield f"{at}.{name}"
    for name, value in known.items():
        if name not in given:
            given[name] = value
        elif isinstance(value, DictConfig) and "_target_" not in value:
            if not isinstance(given[name], DictConfig):
                raise TypeError(f"{at}.{name} is {given[name]!r}, expected a section")
            yield from _filled(given[name], value, f"{at}.{name}")


def setup_logger(
    output: str | Path | None = None,
    distributed_rank: int | None = None,
    *,
    color: bool = True,
    name: str = "libai",
    abbrev_name: str | None = None,
) -> logging.Logger:
    """Log to standard output on rank 0, and to ``log.txt`` (``.rankN``) on each rank.

    What Stoker itself says goes into the same file. Every process knows its rank, so that
    ``distributed_rank`` need not be passed; the log has no colors, whatever ``color`` is.
    """
    logger, core = logging.getLogger(name), logging.getLogger("stoker")
    logger.setLevel(logging.DEBUG)
    for one in (logger, core):
        for old in [old for old in one.handlers if isinstance(old, LogFile | _Output)]:
            one.removeHandler(old)
        if output is not None:
            one.addHandler(LogFile(Path(output), lambda: True))
    if dist.is_main():
        logger.addHandler(shown := _Output())
        shown.setLevel(logging.INFO)
        form = f"[%(asctime)s {abbrev_name or '%(name)s'}]: %(message)s"
        shown.setFormatter(logging.Formatter(form, datefmt="%m/%d %H:%M:%S"))
    return logger


class _Output(logging.StreamHandler[Any]):
    """A handler for the current standard output."""

    stream = property(lambda self: sys.stdout, lambda self, _: None)


def default_setup(cfg: Any, args: argparse.Namespace) -> None:
    """Set up logging, the config and the seed from the command line.

    Processes are connected, the log and ``config.yaml`` are in the output folder, batch sizes
    agree, random numbers are seeded.
    """
    dist.connect()
    train = prepared(cfg)
    if getattr(args, "resume", False):
        train["resume"] = True
    if getattr(args, "fast_dev_run", False):
        train.update(train_epoch=0, train_iter=20, log_period=1)
        train["evaluation"].update(eval_period=10, eval_after_n_epoch=None)
    folder = local_path(train["output_dir"], "train.output_dir")
    folder.mkdir(parents=True, exist_ok=True)
    setup_logger(folder)
    _log.info(f"command line: {args}")
    _log.info(f"config:\n{LazyConfig.to_py(cfg)}")
    seed_all(train["seed"])
    if dist.is_main():
        LazyConfig.save(cfg, folder / "config.yaml")


def _built_loader(node: Any, tokenizer: Any, **options: Any) -> Any:
    """Build a loader with the options that it takes.

    LiBai's builders, which take a batch size for training or test, build the dataset themselves.
    """
    if "train_val_test_num_samples" not in node:
        options.pop("train_val_test_num_samples", None)
    given = {name: options[name] for name in accepts(node, *options)}
    datasets = node.get("dataset")
    for one in datasets if isinstance(datasets, ListConfig) else [datasets]:
        if isinstance(one, DictConfig):
            one.update({"seed": options["seed"]} if "seed" in one else {})
            one.update({"tokenizer": tokenizer} if tokenizer is not None else {})
    if "test_batch_size" in given:
        given.pop("batch_size", None)
        return instantiate(node, **given, _recursive_=False)
    return instantiate(node, **{name: one for name, one in given.items() if name not in node})


class DefaultTrainer(TrainerBase):
    """Train from a config with model, graph, train, optim, dataloader and tokenization.

    Args:
        cfg: as `LazyConfig.load` gives it; its ``train`` and ``graph`` are filled up.
    """

    def __init__(self, cfg: Any) -> None:
        super().__init__()
        dist.connect()
        self.cfg = cfg
        train = prepared(cfg)
        self.tokenizer = self.build_tokenizer(cfg)
        loaders = call(self.build_train_loader, cfg, self.tokenizer)
        loaders = loaders if isinstance(loaders, tuple | list) else (loaders,)
        self.train_loader = loaders[0]
        self.test_loader = [one for one in loaders[1:] if one is not None]
        if train["evaluation"]["enabled"]:
            self.test_loader += call(self.build_test_loader, cfg, self.tokenizer)
        self.auto_scale_hyperparams(cfg, self.train_loader)
        self.max_iter = train["train_iter"]
        self.model = self.build_model(cfg)
        self.optimizer = self.build_optimizer(cfg, self.model)
        self.lr_scheduler = self.build_lr_scheduler(cfg, self.optimizer)
        count = train["num_accumulation_steps"]
        self.graph_eval: Any = self.model
        if cfg["graph"]["enabled"]:
            self.graph_train = self.build_graph(cfg, self.model, self.optimizer, self.lr_scheduler)
            self.graph_eval = self.build_graph(cfg, self.model, is_train=False)
            self._trainer: Any = GraphTrainer(self.graph_train, self.train_loader, count)
            self._trainer.optimizer = self.optimizer
        else:
            self._trainer = EagerTrainer(self.model, self.train_loader, self.optimizer, count)
        states = {"optimizer": self.optimizer, "lr_scheduler": self.lr_scheduler}
        self.checkpointer = hooks.Checkpointer(self.model, train["output_dir"], **states)
        self.start_iter = train["start_iter"]
        self.resume_or_load(train["resume"] is not False)
        train["start_iter"] = self.start_iter
        self.global_batch_size = train["global_batch_size"]
        self._placement = train["input_placement_device"]
        self._last_eval_results: Any = None
        self.register_hooks(self.build_hooks())

    def resume_or_load(self, resume: bool = True) -> None:
        """Load weights of the last checkpoint or ``train.load_weight``; `train` loads the rest.

        Without ``resume`` a folder that holds a run already is refused by `train`.
        """
        found = self.checkpointer.resume_or_load(self.cfg["train"]["load_weight"], resume=resume)
        if resume and self.checkpointer.has_checkpoint():
            self.start_iter = found.get("iteration", -1) + 1
        elif self.cfg["train"]["resume"]:
            _log.info(f"no checkpoint in '{self.checkpointer.save_dir}': starting from scratch")

    def train(self) -> Any:  # type: ignore[override]
        """Train, and return the last evaluation results."""
        resumes = self.resume() == "auto" and self.checkpointer.has_checkpoint()
        super().train(0 if resumes else self.start_iter, self.cfg["train"]["train_iter"])
        return self._last_eval_results

    def run_step(self) -> None:
        """Run one iteration of the inner trainer."""
        call(self._trainer.run_step, self.get_batch, self._placement)

    def inner(self) -> Any:
        """Return the trainer that holds the model, the data and the step."""
        return self._trainer

    def resume(self) -> str:
        """Return the ``resume`` argument; ``train.resume=False`` starts from scratch."""
        return "never" if self.cfg["train"]["resume"] is False else "auto"

    def engine_options(self) -> dict[str, Any]:
        """Return device, precision and layout of the config."""
        train = self.cfg["train"]
        precision = "fp16" if train["amp"]["enabled"] else "fp32"
        return {"device": device(), "precision": precision, "layout": layout_of(train)}

    @classmethod
    def get_batch(
        cls, data: Any, input_placement_device: str = "cuda", mixup_func: Any = None
    ) -> Any:
        """Return a batch as keyword arguments of the model."""
        return plain_batch(data, input_placement_device, mixup_func)

    # What is built, in this order

    @classmethod
    def build_tokenizer(cls, cfg: Any) -> Any:
        """Build ``tokenization.tokenizer``, if it is set, and set the model's vocabulary size."""
        if try_get_key(cfg, "tokenization.tokenizer") is None:
            return None
        tokenizer = models.build_tokenizer(cfg["tokenization"])
        multiple = try_get_key(cfg, "tokenization.make_vocab_size_divisible_by", default=1)
        multiple *= try_get_key(cfg, "train.dist.tensor_parallel_size", default=1)
        known = try_get_key(cfg, "model.cfg.vocab_size") is not None
        if known and hasattr(tokenizer, "padded_vocab_size"):
            cfg["model"]["cfg"]["vocab_size"] = tokenizer.padded_vocab_size(multiple)
        return tokenizer

    @classmethod
    def build_train_loader(cls, cfg: Any, tokenizer: Any = None) -> Any:
        """Build ``dataloader.train``: one loader, or three for training, validation and test."""
        train, tests = cfg["train"], cfg["train"]["evaluation"]
        often = train["train_iter"] // max(1, tests["eval_period"]) + 1
        batches = tests["eval_iter"] if tests["enabled"] else 1
        tested = int(batches * train["test_micro_batch_size"] * layout_of(train).data_ranks)
        return _built_loader(
            cfg["dataloader"]["train"],
            tokenizer,
            **dict.fromkeys(("batch_size", "train_batch_size"), train["train_micro_batch_size"]),
            test_batch_size=train["test_micro_batch_size"],
            train_val_test_num_samples=[int(train["samples"]), often * tested, tested],
            seed=train["seed"],
        )

    @classmethod
    def build_test_loader(cls, cfg: Any, tokenizer: Any = None) -> list[Any]:
        """Build the loaders of ``dataloader.test``."""
        nodes = try_get_key(cfg, "dataloader.test") or []
        nodes = [nodes] if isinstance(nodes, DictConfig) else nodes
        size, seed = cfg["train"]["test_micro_batch_size"], cfg["train"]["seed"]
        options = {"batch_size": size, "test_batch_size": size, "seed": seed}
        return [_built_loader(node, tokenizer, **options) for node in nodes]

    @classmethod
    def auto_scale_hyperparams(cls, cfg: Any, data_loader: Any) -> None:
        """Convert epochs and fractions of the run to iterations."""
        train = cfg["train"]

        def iterations(epochs: float) -> int:
            return math.ceil(len(data_loader.dataset) * epochs / int(train["global_batch_size"]))

        if train["train_epoch"]:
            train["train_iter"] = max(train["train_iter"], iterations(train["train_epoch"]))
        last, saves, tests = train["train_iter"], train["checkpointer"], train["evaluation"]
        if saves["save_model_after_n_epoch"]:
            saves["period"] = iterations(saves["save_model_after_n_epoch"])
        if tests["eval_after_n_epoch"]:
            tests["eval_period"] = iterations(tests["eval_after_n_epoch"])
        train["warmup_iter"] = math.ceil(last * train["warmup_ratio"])
        scheduler = train["scheduler"]
        scheduler.update(max_iter=last, warmup_iter=train["warmup_iter"])
        if "milestones" in scheduler:
            shares = scheduler["milestones"]
            if not all(0 <= share < 1 for share in shares):
                raise ValueError(f"milestones must be fractions of the run, got {shares}")
            scheduler["milestones"] = [int(share * last) for share in shares]

    @classmethod
    def build_model(cls, cfg: Any) -> nn.Module:
        """Build the model, with activation checkpointing if it is configured."""
        uses_amp = cfg["train"]["amp"]["enabled"]
        for owner in (try_get_key(cfg, "model.cfg"), cfg["model"]):
            if isinstance(owner, DictConfig) and "amp_enabled" in owner:
                owner["amp_enabled"] = uses_amp
                break
        model: nn.Module = models.build_model(cfg["model"])
        if cfg["train"]["activation_checkpoint"]["enabled"]:
            if not hasattr(model, "set_activation_checkpoint"):
                raise ValueError(
                    f"train.activation_checkpoint is enabled, but {type(model).__name__} has no "
                    "set_activation_checkpoint(model)"
                )
            model.set_activation_checkpoint(model)  # type: ignore[operator]
        return model

    @classmethod
    def build_graph(
        cls,
        cfg: Any,
        model: nn.Module,
        optimizer: Any = None,
        lr_scheduler: Any = None,
        is_train: bool = True,
    ) -> Any:
        """Build the graph of the model, which is compiled."""
        return models.build_graph(cfg, model, optimizer, lr_scheduler, is_train)

    @classmethod
    def build_optimizer(cls, cfg: Any, model: nn.Module) -> Any:
        """Build the optimizer of ``optim`` for the model's parameters."""
        return models.build_optimizer(cfg["optim"], model)

    @classmethod
    def build_lr_scheduler(cls, cfg: Any, optimizer: Any) -> Any:
        """Build ``train.scheduler``."""
        return build_lr_scheduler(cfg["train"]["scheduler"], optimizer)

    @classmethod
    def build_evaluator(cls, cfg: Any) -> Any:
        """Build the evaluator of ``train.evaluation``."""
        return instantiate(cfg["train"]["evaluation"]["evaluator"])

    def build_hooks(self) -> list[Any]:
        """Build the hooks: timer, learning rate, checkpoints, evaluation, best model, writers."""
        train = self.cfg["train"]
        saves, tests, checkpointer = train["checkpointer"], train["evaluation"], self.checkpointer
        period, kept = saves["period"], saves["max_to_keep"]
        found: list[Any] = [hooks.IterationTimer(), hooks.LRScheduler()]
        found.append(hooks.PeriodicCheckpointer(checkpointer, period, max_to_keep=kept))
        if tests["enabled"] and self.test_loader:

            def test() -> Any:
                self._last_eval_results = self.test(self.cfg, self.test_loader, self.graph_eval)
                return self._last_eval_results

            period, best = tests["eval_period"], (tests["eval_metric"], tests["eval_mode"])
            found.append(hooks.EvalHook(period, test))
            found.append(hooks.BestCheckpointer(period, checkpointer, *best))
        if dist.is_main():
            found.append(hooks.PeriodicWriter(self.build_writers(), train["log_period"]))
        return found

    def build_writers(self) -> list[Any]:
        """Build the writers: console, ``metrics.json`` and TensorBoard."""
        train = self.cfg["train"]
        folder = local_path(train["output_dir"], "train.output_dir")
        return [
            events.CommonMetricPrinter(train["global_batch_size"], train["train_iter"]),
            events.JSONWriter(folder / "metrics.json"),
            events.TensorboardXWriter(folder),
        ]

    @classmethod
    def test(cls, cfg: Any, test_loaders: Sequence[Any], model: Any, evaluator: Any = None) -> Any:
        """Return the results by the class name of each dataset, or directly if there is one."""
        train, found = cfg["train"], {}
        chosen = evaluator or cls.build_evaluator(cfg)
        device, limit = train["input_placement_device"], train["evaluation"]["eval_iter"]
        size = train["test_micro_batch_size"] * layout_of(train).data_ranks
        datasets = [getattr(loader, "dataset", loader) for loader in test_loaders]
        for loader, (_, name) in zip(test_loaders, with_names(datasets, "-"), strict=True):
            found[name] = inference_on_dataset(
                model, loader, size, limit, cls.get_batch, device, chosen
            )
            _log.info(f"results on {name}:")
            print_csv_format(found[name])
        return next(iter(found.values())) if len(found) == 1 else found
