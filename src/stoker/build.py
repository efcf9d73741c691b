"""Build a `Trainer` and its data from a config."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import nn

from stoker import hooks as stock
from stoker.checkpoint import Checkpoints
from stoker.config import Builder, Config, ConfigError, Lazy, RunConfig
from stoker.config.check import parameters, positional_names
from stoker.config.run_section import batch_sizes, filled, read
from stoker.core import dist
from stoker.core.errors import CheckpointError, StokerError, did_you_mean, is_sentence, sentence
from stoker.core.seed import seed_all
from stoker.data import BatchFeeder, DataShard
from stoker.engine import Engine, RetrySchedule
from stoker.engine.checks import resolve_device
from stoker.engine.compile import check_backend
from stoker.engine.defer_dynamo import defer_dynamo
from stoker.engine.fused import can_fuse
from stoker.events import History
from stoker.hooks import Hook
from stoker.hooks.provenance import Provenance
from stoker.parallel import Layout
from stoker.resume.lookup import find_checkpoint
from stoker.run import total_steps
from stoker.rundir import files
from stoker.rundir.folder import RunFolder, has_checkpoints
from stoker.storage import working_folder
from stoker.storage.mirror import located
from stoker.trainer import Trainer


@dataclass
class Job:
    """A built config: the trainer and its loaders."""

    config: Config
    run: RunConfig
    trainer: Trainer
    train_loader: Any = None
    val_loader: Any = None
    predict_loader: Any = None

    @defer_dynamo()
    def fit(self, *, fast_dev_run: bool = False) -> History:
        """Train with the limits of the config.

        Raises:
            ConfigError: the run cannot begin, with its arguments or in its folder.
        """
        run = self.run
        try:
            return self.trainer.fit(
                self.train_loader,
                self.val_loader,
                epochs=run.epochs,
                max_steps=run.max_steps,
                validate_every=run.validate_every,
                limit_train_batches=run.limit_train_batches,
                limit_val_batches=run.limit_val_batches,
                overfit_batches=run.overfit_batches,
                fast_dev_run=fast_dev_run,
                resume=run.resume,
            )
        except (StokerError, ValueError, TypeError) as error:
            if self.trainer.run.feeder is not None or not is_sentence(error):
                raise  # training has begun, or the error needs its traceback
            raise ConfigError(sentence(error)) from error

    def evaluate(self) -> dict[str, float]:
        """Return the metrics on the validation data."""
        if self.val_loader is None:
            raise ConfigError("nothing to evaluate: the config has no val_loader")
        return self.trainer.evaluate(self.val_loader, limit_batches=self.run.limit_val_batches)

    def predict(self) -> Any:
        """Return the model's outputs for ``predict_loader``, or else for ``val_loader``."""
        loader = self.predict_loader if self.predict_loader is not None else self.val_loader
        if loader is None or isinstance(loader, Mapping):
            raise ConfigError(
                "nothing to predict: the config has neither a predict_loader nor a single "
                "val_loader"
            )
        return self.trainer.predict(loader)

    @property
    def steps_per_epoch(self) -> int | None:
        """The number of updates per epoch; None for a loader without a length."""
        return _steps_per_epoch(self.run, self.train_loader, self.trainer.engine.data_shard)

    @property
    def total_steps(self) -> int | None:
        """The number of updates of the run; None if it is unknown."""
        return total_steps(self.run.epochs, self.run.max_steps, self.steps_per_epoch)

    @property
    def scheduler_steps(self) -> int | None:
        """The number of times that the LR scheduler steps; None if it is unknown."""
        return _scheduler_steps(self.run, self.steps_per_epoch)


@defer_dynamo()
def build_job(config: Config, *, training: bool = True, hooks: Iterable[Hook] = ()) -> Job:
    """Check a config, seed, and build everything it describes, each node once.

    The order is: seed, loaders, model, criterion, optimizer, scheduler, step, hooks.

    Args:
        config: the config.
        training: whether to build the optimizer, the scheduler and ``train_loader``.
        hooks: hooks besides those of the config, which only observe.

    Raises:
        ConfigError: the config is invalid (all faults are listed, and nothing has been built), or
            building one of its parts failed.
    """
    try:
        return _build(config, training, hooks)
    except ConfigError:
        raise
    except Exception as error:
        usual = (StokerError, ValueError, TypeError, ImportError, OSError, RuntimeError)
        if config.runs_code and not isinstance(error, usual):
            raise  # a fault in the user's code, which needs its traceback
        kind = "" if is_sentence(error) else f"{type(error).__name__}: "
        raise ConfigError(f"{kind}{sentence(error)}") from error


def _build(config: Config, training: bool, hooks: Iterable[Hook]) -> Job:
    dist.connect()
    tree = config.check(*(_TRAINING_PARTS if training else ("model",)))
    faults = _contradictions(tree, training)
    run: RunConfig = read(tree["run"])
    with config.importable():
        checks: dict[str, Callable[[], object]] = {
            "": lambda: _with_batch_sizes(run, tree, config),
            "run.device: ": lambda: resolve_device(run.device),
            "run.compile: ": lambda: check_backend(run.compile),
            "run.checkpoint: ": lambda: _checkpoint(run),
        }
        for name, check in checks.items():
            try:
                check()
            except ValueError as error:
                faults.append(f"{name}{error}".replace(" mode=", " run.checkpoint.mode="))
    if faults:
        raise ConfigError(*faults)
    folder = _run_folder(config, run) if training else None
    if folder is not None:
        _check_folder(folder, run.resume)
    _set_up_torch(run)
    with config.importable():
        run = _with_batch_sizes(run, tree, config)
        return _build_parts(config, tree, run, folder, training, hooks)


_TRAINING_PARTS = ("model", "optimizer", "train_loader")


def _build_parts(
    config: Config,
    tree: Any,
    run: RunConfig,
    folder: RunFolder | None,
    training: bool,
    hooks: Iterable[Hook],
) -> Job:
    builder = Builder(config)
    layout = layout_of(run).filled(dist.world_size())
    keys = ("train_loader", "val_loader", "predict_loader")
    loaders = {
        key: builder.build(tree[key], key, **_batch_size(run, tree[key]))
        for key in keys
        if tree.get(key) is not None and (training or key != "train_loader")
    }
    model = builder.build(tree["model"], "model")
    criterion = builder.build(tree.get("criterion"), "criterion")
    optimizer = scheduler = None
    if training:
        optimizer = _optimizer(builder, tree["optimizer"], model, resolve_device(run.device))
        shard = DataShard(0, layout.data_ranks, layout.logical_ranks and 1)
        per_epoch = _steps_per_epoch(run, loaders.get("train_loader"), shard)
        steps = _scheduler_steps(run, per_epoch)
        scheduler = _scheduler(builder, tree.get("lr_scheduler"), optimizer, steps)
    names: tuple[str, ...] = (
        "lr_step",
        "device",
        "precision",
        "clip_norm",
        "clip_value",
        "compile",
    )
    names += ("activation_checkpointing",)
    settings = {name: getattr(run, name) for name in names}
    trainer = Trainer(
        Engine(model, optimizer, criterion, lr_scheduler=scheduler, layout=layout, **settings),
        [*_hooks(builder, tree.get("hooks") or [], run, config), *hooks],
        step=builder.build(tree.get("step"), "step"),
        schedule=RetrySchedule() if tree["run"]["micro_batch"] == "auto" else None,
        accumulate=run.accumulate or 1,
        last_window=run.last_window,
        run_dir=folder,
        grace=run.grace,
        params=tree,
    )
    return Job(config, run, trainer, **loaders)


def _run_folder(config: Config, run: RunConfig) -> RunFolder | None:
    if run.dir is None:
        return None
    return RunFolder(working_folder(run.dir, "run.dir") / (run.name or config.name))


def _batch_size(run: RunConfig, loader: Any) -> dict[str, Any]:
    """Return ``run.micro_batch`` as an argument of a loader that does not set its batch size."""
    own = isinstance(loader, Lazy) and {"batch_size", "batch_sampler"} & loader.keys()
    return {} if own or run.micro_batch is None else {"batch_size": run.micro_batch}


def _contradictions(tree: Mapping[str, Any], training: bool) -> list[str]:
    faults, run = [], tree["run"]
    if training and run["epochs"] is None and run["max_steps"] is None:
        faults.append("the run has no end: set run.epochs or run.max_steps")
    if not run["default_hooks"]:
        defaults = filled({})
        faults += [
            f"run.{key} configures a default hook, which run.default_hooks=false removes: add the "
            "hook to the config instead"
            for key in ("log_every", "checkpoint", "hung_after")
            if run[key] != defaults[key]
        ]
    return faults


def _with_batch_sizes(run: RunConfig, tree: Mapping[str, Any], config: Config) -> RunConfig:
    """Fill in micro-batch, accumulation and global batch, with the loader's own batch size."""
    loader = tree.get("train_loader")
    own, accepted = None, None
    if isinstance(loader, Lazy):
        accepted = parameters(config.callee(loader))
        by_position = dict(zip(positional_names(accepted or {}), loader.args, strict=False))
        own = {**by_position, **loader}.get("batch_size")
    given = None if run.micro_batch == "auto" else run.micro_batch
    if run.micro_batch == "auto" and own is None and run.global_batch is None:
        raise ValueError(
            "run.micro_batch=auto divides the batches of a step until they fit, but their size is "
            "unknown: set run.global_batch"
        )
    if given is not None and own is not None and own != given:
        raise ValueError(
            f"train_loader.batch_size is {own}, but run.micro_batch is {given}: "
            "set only one of them"
        )
    ranks = layout_of(run).filled(dist.world_size()).data_ranks
    micro, accumulate, total = batch_sizes(given or own, run.accumulate, run.global_batch, ranks)
    if micro is not None and own is None and accepted is not None and "batch_size" not in accepted:
        raise ValueError(
            f"run.micro_batch is {micro}, but {getattr(loader, 'target', 'train_loader')} has no "
            "batch_size argument"
        )
    return replace(run, micro_batch=micro, accumulate=accumulate, global_batch=total)


def _check_folder(folder: RunFolder, resume: str) -> None:
    """Choose the folder of the run; check that it can be written and has what is resumed."""
    folder.choose(resume)
    if resume in ("auto", "never"):
        return
    places = [folder.path] if resume == "must" else [path := located(resume), path.parent]
    if not any(has_checkpoints(place) or Checkpoints(place).list() for place in places):
        try:
            find_checkpoint(resume, Checkpoints(folder.path / files.CHECKPOINTS))
        except CheckpointError as error:
            raise ConfigError(f"run.resume: {error}") from error


def layout_of(run: RunConfig) -> Layout:
    """Return the layout that ``run.parallel`` describes.

    Raises:
        ValueError: its fields contradict each other.
    """
    values = {one.name: getattr(run.parallel, one.name) for one in fields(run.parallel)}
    if run.parallel.logical_ranks is not None:
        values["threads"] = run.threads or 1
    try:
        return Layout(**values)
    except ValueError as error:
        names_field = str(error).partition(" ")[0] in values
        raise ValueError(f"run.parallel{'.' if names_field else ': '}{error}") from error


def _set_up_torch(run: RunConfig) -> None:
    if run.threads is not None:
        torch.set_num_threads(run.threads)
    if run.deterministic:
        torch.use_deterministic_algorithms(True)
    if run.seed is not None:
        seed_all(run.seed)


def _optimizer(builder: Builder, node: Any, model: nn.Module, device: torch.device) -> Any:
    """Build one optimizer for the model, or one for each submodule that is named."""
    for one in [node] if isinstance(node, Lazy) else node.values():
        if isinstance(one, Lazy) and one.get("fused") == "auto":
            del one["fused"]
            if can_fuse(builder.callee(one), model.parameters(), device):
                one["fused"] = True
    if isinstance(node, Lazy):
        return builder.build(node, "optimizer", params=model.parameters())
    submodules = dict(model.named_children())
    built = {}
    for name, one in node.items():
        if isinstance(one, Lazy) and "params" not in one and name not in submodules:
            raise ConfigError(
                f"optimizer.{name} has no params, and the model has no submodule '{name}'"
                f"{did_you_mean(name, submodules)}"
            )
        supplied = {"params": submodules[name].parameters()} if name in submodules else {}
        built[name] = builder.build(one, f"optimizer.{name}", **supplied)
    return built


def _scheduler(builder: Builder, node: Any, optimizer: Any, steps: int | None) -> Any:
    if node is None:
        return None
    if isinstance(node, Lazy):
        return _one_scheduler(builder, node, "lr_scheduler", optimizer, steps)
    return {
        name: _one_scheduler(builder, one, f"lr_scheduler.{name}", optimizer[name], steps)
        for name, one in node.items()
    }


def _one_scheduler(
    builder: Builder, node: Lazy, path: str, optimizer: Any, steps: int | None
) -> Any:
    supplied = {"optimizer": optimizer, "total_steps": steps, "T_max": steps}
    accepted = parameters(builder.callee(node)) or {}
    for name in ("total_steps", "T_max"):
        required = name in accepted and accepted[name].default in (accepted[name].empty, None)
        if required and name not in node and "epochs" not in node and steps is None:
            raise ConfigError(
                f"{node.where}: the number of updates is unknown: set {path}.{name} or "
                "run.max_steps"
            )
    return builder.build(node, path, **supplied)


def _scheduler_steps(run: RunConfig, steps_per_epoch: int | None) -> int | None:
    if run.lr_step == "epoch":
        return run.epochs
    return total_steps(run.epochs, run.max_steps, steps_per_epoch)


def _steps_per_epoch(run: RunConfig, loader: Iterable[Any] | None, shard: DataShard) -> int | None:
    if loader is None:
        return None
    limit = run.limit_train_batches if run.overfit_batches is None else run.overfit_batches
    accumulate = run.accumulate or 1
    return BatchFeeder(
        loader, accumulate, last_window=run.last_window, limit=limit, shard=shard
    ).steps


def _checkpoint(run: RunConfig) -> stock.Checkpoint:
    return stock.Checkpoint(**vars(run.checkpoint), optional=True)


def _hooks(builder: Builder, nodes: list[Any], run: RunConfig, config: Config) -> list[Hook]:
    checkpoint = _checkpoint(run)
    default = stock.default(log_every=run.log_every, progress=run.progress, checkpoint=checkpoint)
    if dist.world_size() > 1:
        default.append(stock.Heartbeat(run.hung_after))
    if stock.in_ray_worker():
        default.append(stock.RayReport())
    own = [builder.build(node, f"hooks.{index}") for index, node in enumerate(nodes)]
    return [*(default if run.default_hooks else []), *own, Provenance(config)]
