"""`DefaultTrainer`: build a training from a config; every ``build_`` method can be overridden."""

import argparse
import logging
import math
from collections import Counter
from collections.abc import Callable, Iterable
from functools import cache
from inspect import signature
from typing import Any

from torch import nn

from stoker import seed_all
from stoker.config import ConfigError, Lazy
from stoker.config.files import merge
from stoker.config.lazy import Section
from stoker.config.run_section import batch_sizes
from stoker.core import dist
from stoker.core.errors import did_you_mean
from stoker.dialects.libai import hooks
from stoker.dialects.libai.checkpoint import Checkpointer
from stoker.dialects.libai.config import (
    LazyConfig,
    as_config,
    get_config,
    instantiate,
    supplied,
    try_get_key,
)
from stoker.dialects.libai.distributed import layout_of
from stoker.dialects.libai.evaluation import (
    DatasetEvaluator,
    device_of,
    inference_on_dataset,
    print_csv_format,
)
from stoker.dialects.libai.events import CommonMetricPrinter, JSONWriter, TensorboardXWriter
from stoker.dialects.libai.logger import setup_logger
from stoker.dialects.libai.trainer import (
    EagerTrainer,
    Graph,
    GraphTrainer,
    TrainerBase,
    plain_batch,
)
from stoker.storage import local_path

_log = logging.getLogger("libai.default")


def default_setup(cfg: Any, args: argparse.Namespace) -> None:
    """Set up logging, the config and the seed from the command line.

    Processes are connected, the log and ``config.yaml`` are in the output folder, batch sizes
    agree, random numbers are seeded.
    """
    dist.connect()
    train = prepared(cfg)
    if args.resume:
        train["resume"] = True
    if args.fast_dev_run:
        train.update(train_epoch=0, train_iter=20, log_period=1)
        train["evaluation"].update(eval_period=10, eval_after_n_epoch=None)
    folder = local_path(train["output_dir"], "train.output_dir")
    folder.mkdir(parents=True, exist_ok=True)
    setup_logger(folder)
    _log.info(f"command line: {args}")
    _log.info(f"config:\n{LazyConfig.to_py(cfg)}")
    seed_all(train["seed"])
    if dist.is_main():
        try:
            LazyConfig.save(cfg, folder / "config.yaml")
        except ConfigError as error:  # a class of the script itself, for one
            _log.warning(f"config.yaml was not written: {error}")


def prepared(cfg: Any) -> Section:
    """Return the completed ``train`` section; unknown keys are an error."""
    for name, file in (("train", "common/train.py"), ("graph", "common/models/graph.py")):
        known = get_config(file)[name]
        given = as_config(cfg.get(name, {}))
        _check_known(given, known, name)
        merge(known, given)
        cfg[name] = known
    train: Section = cfg["train"]
    if cfg["graph"]["debug"] >= 0:
        raise ValueError("graph.debug is not supported: set TORCH_LOGS in the environment instead")
    if train["zero_optimization"]["stage"] not in (1, 2, 3):
        raise ValueError(
            f"zero_optimization.stage must be 1, 2 or 3, got {train.zero_optimization.stage}"
        )
    names = ("train_micro_batch_size", "num_accumulation_steps", "global_batch_size")
    micro, accumulate, total = (train[name] for name in names)
    if micro is None and total is None:
        raise ValueError("set train.train_micro_batch_size or train.global_batch_size")
    try:
        sizes = batch_sizes(micro, accumulate, total, layout_of(train).data_ranks)
    except ValueError as error:
        text = str(error).replace("run.", "train.").replace("micro_batch", names[0])
        text = text.replace("accumulate", names[1]).replace("global_batch", names[2])
        raise ValueError(text) from None
    train.update(zip(names, sizes, strict=True))
    return train


def _check_known(given: Section, known: Section, at: str) -> None:
    for name, value in given.items():
        if name not in known:
            near = did_you_mean(name, known)
            raise ValueError(f"{at} has no {name!r}{near}; put your own keys into another section")
        inside = known[name]
        if isinstance(inside, Section) and not isinstance(inside, Lazy):
            _check_known(as_config(value), inside, f"{at}.{name}")


@cache
def _takes_device(run_step: Callable[..., None]) -> bool:
    """Return whether a ``run_step`` takes the device in addition to ``get_batch``."""
    return len(signature(run_step).parameters) > 2


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
        loaders = self.build_train_loader(cfg, self.tokenizer)
        loaders = loaders if isinstance(loaders, tuple) else (loaders,)
        self.train_loader = loaders[0]
        self.test_loader = [one for one in loaders[1:] if one is not None]
        if train["evaluation"]["enabled"]:
            self.test_loader += self.build_test_loader(cfg, self.tokenizer)
        self.auto_scale_hyperparams(cfg, self.train_loader)
        self.max_iter = train["train_iter"]
        self.model = self.build_model(cfg)
        self.optimizer = self.build_optimizer(cfg, self.model)
        self.lr_scheduler = self.build_lr_scheduler(cfg, self.optimizer)
        count = train["num_accumulation_steps"]
        if cfg["graph"]["enabled"]:
            self.graph_train = self.build_graph(cfg, self.model, self.optimizer, self.lr_scheduler)
            self._trainer: Any = GraphTrainer(self.graph_train, self.train_loader, count)
        else:
            self._trainer = EagerTrainer(self.model, self.train_loader, self.optimizer, count)
        states = {"optimizer": self.optimizer, "lr_scheduler": self.lr_scheduler}
        self.checkpointer = Checkpointer(self.model, train["output_dir"], **states)
        self.start_iter = train["start_iter"]
        self.resume_or_load(train["resume"] is not False)
        train["start_iter"] = self.start_iter
        self._number = 0
        self._results: Any = None
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
        return self._results

    def run_step(self) -> None:
        """Run one iteration of the inner trainer."""
        self._trainer.iter = self._number
        if _takes_device(type(self._trainer).run_step):
            self._trainer.run_step(self.get_batch, self.cfg["train"]["input_placement_device"])
        else:
            self._trainer.run_step(self.get_batch)

    def run_step_of(self, inner: Any, number: int) -> None:
        """Run one iteration with the counter of the inner trainer."""
        self._number = number
        self.run_step()

    def inner(self) -> Any:
        """Return the trainer that holds the model, the data and the step."""
        return self._trainer

    def resume(self) -> str:
        """Return the ``resume`` argument; ``train.resume=False`` starts from scratch."""
        return "never" if self.cfg["train"]["resume"] is False else "auto"

    def engine_options(self) -> dict[str, Any]:
        """Return device, precision and layout of the config."""
        train = self.cfg["train"]
        return {
            "device": device_of(train["input_placement_device"]),
            "precision": "fp16" if train["amp"]["enabled"] else "fp32",
            "layout": layout_of(train),
        }

    @classmethod
    def get_batch(
        cls, data: Any, input_placement_device: str = "cuda", mixup_func: Any = None
    ) -> Any:
        """Return a batch as keyword arguments of the model."""
        return plain_batch(data, input_placement_device, mixup_func)

    # What is built, in this order

    @classmethod
    def build_tokenizer(cls, cfg: Any) -> Any:
        """Build ``tokenization.tokenizer``, if it is set."""
        node = try_get_key(cfg, "tokenization.tokenizer", "tokenization")
        return instantiate(node) if isinstance(node, Lazy) else None

    @classmethod
    def build_train_loader(cls, cfg: Any, tokenizer: Any = None) -> Any:
        """Build ``dataloader.train``: one loader, or three for training, validation and test."""
        size = cfg["train"]["train_micro_batch_size"]
        own = {"batch_size": size, "train_batch_size": size, "seed": cfg["train"]["seed"]}
        others = {"test_batch_size": cfg["train"]["test_micro_batch_size"], "tokenizer": tokenizer}
        return supplied(cfg["dataloader"]["train"], "dataloader.train", **own, **others)

    @classmethod
    def build_test_loader(cls, cfg: Any, tokenizer: Any = None) -> list[Any]:
        """Build the loaders of ``dataloader.test``."""
        nodes = cfg["dataloader"].get("test") or []
        size = cfg["train"]["test_micro_batch_size"]
        own = {"batch_size": size, "test_batch_size": size, "tokenizer": tokenizer}
        own["seed"] = cfg["train"]["seed"]
        return [
            supplied(node, f"dataloader.test.{number}", **own)
            for number, node in enumerate([nodes] if isinstance(nodes, Lazy) else nodes)
        ]

    @classmethod
    def auto_scale_hyperparams(cls, cfg: Any, data_loader: Any) -> None:
        """Convert epochs and fractions of the run to iterations."""
        train = cfg["train"]

        def iterations(epochs: float) -> int:
            return math.ceil(len(data_loader.dataset) * epochs / int(train["global_batch_size"]))

        if train["train_epoch"]:
            train["train_iter"] = max(train["train_iter"], iterations(train["train_epoch"]))
        last = train["train_iter"]
        if train["checkpointer"]["save_model_after_n_epoch"]:
            epochs = train["checkpointer"]["save_model_after_n_epoch"]
            train["checkpointer"]["period"] = iterations(epochs)
        if train["evaluation"]["eval_after_n_epoch"]:
            train["evaluation"]["eval_period"] = iterations(
                train["evaluation"]["eval_after_n_epoch"]
            )
        scheduler = train["scheduler"]
        scheduler.update(max_iter=last, warmup_iter=math.ceil(last * train["warmup_ratio"]))
        if "milestones" in scheduler:
            shares = scheduler["milestones"]
            if not all(0 <= share < 1 for share in shares):
                raise ValueError(
                    f"milestones must be fractions of the run, from 0 to 1, got {shares}"
                )
            scheduler["milestones"] = [int(share * last) for share in shares]

    @classmethod
    def build_model(cls, cfg: Any) -> nn.Module:
        """Build the model, with activation checkpointing if it is configured."""
        model = instantiate(cfg["model"])
        assert isinstance(model, nn.Module)
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
    ) -> Graph:
        """Return the compiled model."""
        return Graph(model, optimizer if is_train else None, cfg["graph"]["backend"])

    @classmethod
    def build_optimizer(cls, cfg: Any, model: nn.Module) -> Any:
        """Build the optimizer of ``optim`` for the model's parameters."""
        params = cfg["optim"].get("params")
        if isinstance(params, Lazy):
            return instantiate(cfg["optim"], params=instantiate(params, model=model))
        return supplied(cfg["optim"], "optim", params=model.parameters())

    @classmethod
    def build_lr_scheduler(cls, cfg: Any, optimizer: Any) -> Any:
        """Build ``train.scheduler``."""
        return instantiate(cfg["train"]["scheduler"], optimizer=optimizer)

    @classmethod
    def build_evaluator(cls, cfg: Any) -> DatasetEvaluator:
        """Build the evaluator of ``train.evaluation``."""
        evaluator = instantiate(cfg["train"]["evaluation"]["evaluator"])
        assert isinstance(evaluator, DatasetEvaluator)
        return evaluator

    def build_hooks(self) -> list[Any]:
        """Build the hooks: timer, learning rate, checkpoints, evaluation, best model, writers."""
        train = self.cfg["train"]
        kept, compute_loss = train["checkpointer"], train["evaluation"]
        found: list[Any] = [hooks.IterationTimer(), hooks.LRScheduler()]
        found.append(
            hooks.PeriodicCheckpointer(
                self.checkpointer, kept["period"], max_to_keep=kept["max_to_keep"]
            )
        )
        if compute_loss["enabled"] and self.test_loader:
            evaluator = self.build_evaluator(self.cfg)

            def test() -> Any:
                self._results = self.test(self.cfg, self.test_loader, self.model, evaluator)
                return self._results

            found.append(hooks.EvalHook(compute_loss["eval_period"], test))
            found.append(
                hooks.BestCheckpointer(
                    compute_loss["eval_period"],
                    self.checkpointer,
                    compute_loss["eval_metric"],
                    compute_loss["eval_mode"],
                )
            )
        if dist.is_main():
            found.append(hooks.PeriodicWriter(self.build_writers(), train["log_period"]))
        return found

    def build_writers(self) -> list[Any]:
        """Build the writers: console, ``metrics.json`` and TensorBoard."""
        train = self.cfg["train"]
        folder = local_path(train["output_dir"], "train.output_dir")
        return [
            CommonMetricPrinter(train["global_batch_size"], train["train_iter"]),
            JSONWriter(folder / "metrics.json"),
            TensorboardXWriter(folder),
        ]

    @classmethod
    def test(
        cls,
        cfg: Any,
        test_loaders: Iterable[Any],
        model: nn.Module,
        evaluator: DatasetEvaluator | None = None,
    ) -> Any:
        """Return the results by the class name of each dataset, or directly if there is one."""
        train, found = cfg["train"], {}
        judge = evaluator or cls.build_evaluator(cfg)
        size = train["test_micro_batch_size"] * layout_of(train).data_ranks
        seen: Counter[str] = Counter()
        for loader in test_loaders:
            kind = type(getattr(loader, "dataset", loader)).__name__
            seen[kind] += 1
            name = kind if seen[kind] == 1 else f"{kind}-{seen[kind]}"
            found[name] = inference_on_dataset(
                model,
                loader,
                size,
                train["evaluation"]["eval_iter"],
                cls.get_batch,
                train["input_placement_device"],
                judge,
            )
            _log.info(f"results on {name}:")
            print_csv_format(found[name])
        return next(iter(found.values())) if len(found) == 1 else found
