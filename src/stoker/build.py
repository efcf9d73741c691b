"""From a config to a trainer: the only place that assembles a run."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import nn

from stoker import hooks as stock
from stoker.config import Builder, Config, ConfigError, Lazy, RunConfig
from stoker.config.run_section import batch_sizes, filled, read
from stoker.config.signature import parameters, positional_names
from stoker.core import dist
from stoker.core.errors import did_you_mean
from stoker.core.seed import seed_all
from stoker.data import BatchFeeder, DataShard
from stoker.engine import Engine
from stoker.engine.checks import resolve_device
from stoker.engine.defer_dynamo import defer_dynamo
from stoker.engine.fused import can_fuse
from stoker.events import History
from stoker.hooks import Hook
from stoker.hooks.provenance import Provenance
from stoker.parallel import Layout
from stoker.rundir.provenance import folder_for_config
from stoker.trainer import Trainer


@dataclass
class Job:
    """What a config describes, built: a trainer and the data it reads."""

    config: Config
    run: RunConfig
    trainer: Trainer
    train_loader: Any = None
    val_loader: Any = None
    predict_loader: Any = None

    @defer_dynamo()
    def fit(self, *, fast_dev_run: bool = False) -> History:
        """Train as the config says."""
        run = self.run
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

    def evaluate(self) -> dict[str, float]:
        """Results over the validation data."""
        if self.val_loader is None:
            raise ConfigError("there is nothing to evaluate on: the config has no val_loader")
        return self.trainer.evaluate(self.val_loader, limit_batches=self.run.limit_val_batches)

    def predict(self) -> Any:
        """What the model makes of ``predict_loader``, or of ``val_loader`` where there is none."""
        loader = self.predict_loader if self.predict_loader is not None else self.val_loader
        if loader is None or isinstance(loader, Mapping):
            raise ConfigError(
                "there is nothing to predict: the config has neither predict_loader nor one "
                "val_loader"
            )
        return self.trainer.predict(loader)

    @property
    def total_steps(self) -> int | None:
        """How many updates the whole run has, None where that is not known."""
        return _horizon(self.run, self.train_loader, self.trainer.engine.data_shard)


@defer_dynamo()
def build_job(config: Config, *, training: bool = True) -> Job:
    """Check a config, seed, and build everything it describes, each node once.

    The order is: seed, loaders, model, criterion, optimizer, scheduler, step, hooks.

    Raises:
        ConfigError: everything that is wrong with the config, before anything is built.
    """
    dist.connect()
    tree = config.check()
    faults = _missing_parts(tree, training)
    run: RunConfig = read(tree["run"])
    try:
        with config.importable():
            run = _with_batch_sizes(run, tree, config)
        layout = layout_of(run).filled(dist.world_size())
    except ValueError as error:
        faults.append(str(error))
    if faults:
        raise ConfigError(*faults)
    _set_up_torch(run)
    with config.importable():
        return _built(config, tree, run, layout, training)


def assembled(config: Config, *, training: bool = True) -> Job:
    """The same, and what parts complain of while they are made is a fault of the config, too."""
    try:
        return build_job(config, training=training)
    except ConfigError:
        raise
    except (ValueError, TypeError, ImportError, OSError, RuntimeError) as error:
        notes = "".join(f"; {note}" for note in getattr(error, "__notes__", []))
        raise ConfigError(f"{type(error).__name__}: {error}{notes}") from error


def _built(config: Config, tree: Any, run: RunConfig, layout: Layout, training: bool) -> Job:
    builder = Builder(config)
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
        horizon = _horizon(run, loaders.get("train_loader"), DataShard(0, layout.data_ranks))
        scheduler = _scheduler(builder, tree.get("lr_scheduler"), optimizer, horizon)
    engine = Engine(
        model,
        optimizer,
        criterion,
        lr_scheduler=scheduler,
        lr_step=run.lr_step,
        device=run.device,
        precision=run.precision,
        clip_norm=run.clip_norm,
        clip_value=run.clip_value,
        layout=layout,
        compile=run.compile,
    )
    trainer = Trainer(
        engine,
        _hooks(builder, tree.get("hooks") or [], run, config),
        step=builder.build(tree.get("step"), "step"),
        accumulate=run.accumulate or 1,
        last_window=run.last_window,
        run_dir=folder_for_config(config, tree, run) if training else None,
        grace=run.grace,
    )
    return Job(config, run, trainer, **loaders)


def _batch_size(run: RunConfig, loader: Any) -> dict[str, int]:
    """The micro-batch, for a loader that leaves its size open."""
    own = isinstance(loader, Lazy) and {"batch_size", "batch_sampler"} & loader.keys()
    return {} if own or run.micro_batch is None else {"batch_size": run.micro_batch}


def _missing_parts(tree: Mapping[str, Any], training: bool) -> list[str]:
    needed = ("model", "optimizer", "train_loader") if training else ("model",)
    faults = [f"the config has no '{key}'" for key in needed if tree.get(key) is None]
    run = tree["run"]
    if training and run["epochs"] is None and run["max_steps"] is None:
        faults.append("the run would never end: give run.epochs or run.max_steps")
    faults += [
        f"run.{key} is a number of seconds above 0, got {run[key]}"
        for key in ("dead_after", "hung_after")
        if run[key] is not None and run[key] <= 0
    ]
    if not run["default_hooks"]:
        usual = filled({})
        faults += [
            f"run.{key} is about the default hooks, which run.default_hooks=false leaves out: put "
            f"hooks of your own into the config instead"
            for key in ("log_every", "checkpoint", "hung_after")
            if run[key] != usual[key]
        ]
    return faults


def _with_batch_sizes(run: RunConfig, tree: Mapping[str, Any], config: Config) -> RunConfig:
    """The run with micro-batch, accumulation and global batch, the loader's own size included."""
    loader = tree.get("train_loader")
    own, taken = None, None
    if isinstance(loader, Lazy):
        taken = parameters(config.callee(loader))
        by_place = dict(zip(positional_names(taken or {}), loader.args, strict=False))
        own = {**by_place, **loader}.get("batch_size")
    if run.micro_batch is not None and own is not None and own != run.micro_batch:
        raise ValueError(
            f"train_loader.batch_size is {own}, but run.micro_batch is {run.micro_batch}: "
            "give one of them"
        )
    parts = layout_of(run).filled(dist.world_size()).data_ranks
    micro, accumulate, whole = batch_sizes(
        run.micro_batch or own, run.accumulate, run.global_batch, parts
    )
    if micro is not None and own is None and taken is not None and "batch_size" not in taken:
        raise ValueError(
            f"run.micro_batch is {micro}, but {getattr(loader, 'target', 'train_loader')} takes no "
            "batch_size to set it"
        )
    return replace(run, micro_batch=micro, accumulate=accumulate, global_batch=whole)


def layout_of(run: RunConfig) -> Layout:
    """How the config has the job split.

    Raises:
        ValueError: what it says does not go together.
    """
    return Layout(**{one.name: getattr(run.parallel, one.name) for one in fields(Layout)})


def _set_up_torch(run: RunConfig) -> None:
    if run.threads is not None:
        torch.set_num_threads(run.threads)
    if run.deterministic:
        torch.use_deterministic_algorithms(True)
    if run.seed is not None:
        seed_all(run.seed)


def _optimizer(builder: Builder, node: Any, model: nn.Module, device: torch.device) -> Any:
    """One optimizer over the model, or several, each over the part of the model of its name."""
    for one in [node] if isinstance(node, Lazy) else node.values():
        if isinstance(one, Lazy) and one.get("fused") == "auto":
            del one["fused"]
            if can_fuse(builder.callee(one), model.parameters(), device):
                one["fused"] = True
    if isinstance(node, Lazy):
        return builder.build(node, "optimizer", params=model.parameters())
    parts = dict(model.named_children())
    made = {}
    for name, one in node.items():
        if isinstance(one, Lazy) and "params" not in one and name not in parts:
            raise ConfigError(
                f"optimizer.{name} has no params, and the model has no part named '{name}'"
                f"{did_you_mean(name, parts)}"
            )
        supplied = {"params": parts[name].parameters()} if name in parts else {}
        made[name] = builder.build(one, f"optimizer.{name}", **supplied)
    return made


def _scheduler(builder: Builder, node: Any, optimizer: Any, horizon: int | None) -> Any:
    if node is None:
        return None
    if isinstance(node, Lazy):
        return _one_scheduler(builder, node, "lr_scheduler", optimizer, horizon)
    return {
        name: _one_scheduler(builder, one, f"lr_scheduler.{name}", optimizer[name], horizon)
        for name, one in node.items()
    }


def _one_scheduler(
    builder: Builder, node: Lazy, path: str, optimizer: Any, horizon: int | None
) -> Any:
    supplied = {"optimizer": optimizer, "total_steps": horizon, "T_max": horizon}
    taken = parameters(builder.callee(node)) or {}
    for name in ("total_steps", "T_max"):
        required = name in taken and taken[name].default in (taken[name].empty, None)
        if required and name not in node and "epochs" not in node and horizon is None:
            raise ConfigError(
                f"{node.where}: how many updates the run has is not known, so give "
                f"{path}.{name} or run.max_steps"
            )
    return builder.build(node, path, **supplied)


def _horizon(run: RunConfig, loader: Iterable[Any] | None, shard: DataShard) -> int | None:
    """The updates of the whole run, or its epochs where the scheduler moves once per epoch."""
    if run.lr_step == "epoch":
        return run.epochs
    if loader is None:
        return run.max_steps
    feeder = train_feeder(run, loader, shard)
    limits = [] if run.max_steps is None else [run.max_steps]
    if run.epochs is not None and feeder.steps is not None:
        limits.append(run.epochs * feeder.steps)
    return min(limits, default=None)


def train_feeder(run: RunConfig, loader: Iterable[Any], shard: DataShard) -> BatchFeeder:
    """The training data as a fit reads it, in a process that has this part of it."""
    limit = run.limit_train_batches if run.overfit_batches is None else run.overfit_batches
    return BatchFeeder(
        loader, run.accumulate or 1, last_window=run.last_window, limit=limit, shard=shard
    )


def _hooks(builder: Builder, nodes: list[Any], run: RunConfig, config: Config) -> list[Hook]:
    kept = run.checkpoint
    checkpoint = stock.Checkpoint(
        kept.every,
        max_overhead=kept.max_overhead,
        keep=kept.keep,
        keep_every=kept.keep_every,
        best=kept.best,
        mode=kept.mode,
        optional=True,
    )
    usual = stock.default(log_every=run.log_every, progress=run.progress, checkpoint=checkpoint)
    if run.hung_after is not None and dist.world_size() > 1:
        usual.append(stock.Heartbeat(run.hung_after))
    if stock.in_ray_worker():
        usual.append(stock.RayReport())
    own = [builder.build(node, f"hooks.{index}") for index, node in enumerate(nodes)]
    return [*(usual if run.default_hooks else []), *own, Provenance(config)]
