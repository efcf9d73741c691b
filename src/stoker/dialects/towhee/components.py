"""Build the components that a `TrainingConfig` describes: loss, optimizer, loaders, hooks."""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader, IterableDataset

from stoker import Engine, Hook, hooks
from stoker.config import LOSSES, OPTIMIZERS, SCHEDULERS, Registry
from stoker.core import dist
from stoker.core.errors import did_you_mean
from stoker.core.log import get_logger
from stoker.data import SeededDataset
from stoker.dialects.adapter import with_names
from stoker.dialects.towhee.callback import (
    Callback,
    EarlyStoppingCallback,
    ModelCheckpointCallback,
    PrintCallBack,
    ProgressBarCallBack,
    TensorBoardCallBack,
    TrainerControl,
)
from stoker.dialects.towhee.training_config import Spec, TrainingConfig, off
from stoker.nn import lr

_log = get_logger()

_SCHEDULES: dict[str, Callable[..., Any]] = {
    "linear": lr.linear, "cosine": lr.cosine, "cosine_with_restarts": lr.cosine,
    "polynomial": lr.polynomial, "constant": lr.constant, "constant_with_warmup": lr.constant,
}  # fmt: skip
NATIVE = {
    "eval_epoch_metric": "val/metric", "eval_epoch_loss": "val/loss",
    "epoch_metric": "train/metric", "epoch_loss": "train/loss",
}  # fmt: skip
"""The names of the results that can be monitored, in Stoker."""


def _named(spec: Spec) -> tuple[str, dict[str, Any]]:
    if isinstance(spec, str):
        return spec, {}
    if "name_" not in spec:
        raise ValueError(f"{spec!r} has no 'name_', which says what it is")
    return str(spec["name_"]), {key: value for key, value in spec.items() if key != "name_"}


def _made(registry: Registry, spec: Spec, *given: Any, **usual: Any) -> Any:
    name, arguments = _named(spec)
    return registry.get(name)(*given, **{**usual, **arguments})


def build_loss(configs: TrainingConfig) -> nn.Module:
    """Build the loss function."""
    made: nn.Module = _made(LOSSES, configs.loss)
    return made


def build_optimizer(configs: TrainingConfig, model: nn.Module, lr: float) -> Optimizer:
    """Build the optimizer of all parameters, with this rate unless the config has another."""
    made: Optimizer = _made(OPTIMIZERS, configs.optimizer, model.parameters(), lr=lr)
    return made


def build_scheduler(
    configs: TrainingConfig, optimizer: Optimizer, total: int | None, so_far: tuple[int, Any]
) -> Any:
    """Build the LR schedule over ``total`` updates, or return None if that is unknown.

    ``so_far`` is how many were made already, and the schedule of those.
    """
    steps, old = so_far
    rates: list[Any] = [group.get("lr") for group in optimizer.param_groups]
    for group in optimizer.param_groups:
        if "lr" not in group:
            raise ValueError(
                f"{type(optimizer).__name__} has no 'lr' in its parameter groups, so there is no "
                "rate to schedule: give it one (defaults={'lr': …})"
            )
        group["lr"] = group.get("initial_lr", group["lr"])
    made = _scheduler(configs, optimizer, total)
    if steps and isinstance(made, LambdaLR):
        made.last_epoch = steps  # with the rate that a training of this length has here
        factors = [factor(steps) for factor in made.lr_lambdas]
        rates = [base * one for base, one in zip(made.base_lrs, factors, strict=True)]
        made._last_lr = rates
    elif steps and type(old) is type(made):
        made.load_state_dict(old.state_dict())
    else:
        return made
    for group, rate in zip(optimizer.param_groups, rates, strict=True):
        group["lr"] = rate
    return made


def _scheduler(configs: TrainingConfig, optimizer: Optimizer, total: int | None) -> Any:
    name, arguments = _named(configs.lr_scheduler_type)
    if name not in _SCHEDULES and name not in SCHEDULERS:
        near = did_you_mean(name, [*_SCHEDULES, *SCHEDULERS])
        raise ValueError(f"there is no lr_scheduler_type {name!r}{near}")
    if name not in _SCHEDULES or name == "constant":
        if configs.warmup_steps or configs.warmup_ratio:
            _log.warning(f"{name!r} has no warm-up: warmup_steps and warmup_ratio have no effect")
        if name not in _SCHEDULES:
            return _made(SCHEDULERS, configs.lr_scheduler_type, optimizer)
        total = total or 1
    if total is None:
        raise ValueError(
            f"the training data has no length, which {name!r} needs: use 'constant', or a dict "
            "such as {'name_': 'StepLR', …}"
        )
    if "num_cycles" in arguments:
        arguments["cycles"] = arguments.pop("num_cycles")
    warm_up = {"warmup_steps": configs.warmup_steps, "warmup_ratio": configs.warmup_ratio}
    warm_up = {} if name == "constant" else warm_up
    return _SCHEDULES[name](optimizer, total, **{**warm_up, **arguments})


def build_engine(configs: TrainingConfig, model: nn.Module, optimizer: Any, loss: Any) -> Engine:
    """Build the engine on the device of the config, or on all GPUs."""
    device = configs.device_str or str(configs.device)
    several = device == "cuda" and torch.cuda.device_count() > 1 and dist.world_size() == 1
    if several and not isinstance(model, nn.DataParallel):  # untested: no such devices here
        model = nn.DataParallel(model)
    return Engine(model, optimizer, loss, device=device)


def build_loader(configs: TrainingConfig, dataset: Any, *, training: bool) -> DataLoader[Any]:
    """Return a loader: shuffled for training, complete for evaluation."""
    workers = configs.num_workers
    ordered = isinstance(dataset, IterableDataset)
    if workers and training and not ordered:
        dataset = SeededDataset(dataset, configs.seed)  # what workers draw is the sample's own
    return DataLoader(
        dataset,
        batch_size=configs.train_batch_size if training else configs.eval_batch_size,
        shuffle=training and not ordered,
        pin_memory=configs.dataloader_pin_memory and torch.cuda.is_available(),
        drop_last=training and configs.dataloader_drop_last,
        num_workers=workers,
    )


def validate_every(configs: TrainingConfig) -> str | None:
    """Return how often to evaluate."""
    if off(configs.eval_strategy):
        return None
    by_step = configs.eval_strategy in ("step", "steps")
    return f"{configs.eval_steps}st" if by_step else "1ep"


def build_callbacks(
    configs: TrainingConfig, control: TrainerControl, loader: Any
) -> list[Callback]:
    """Build the callbacks of the config."""
    made: list[Callback] = []
    if not off(configs.early_stopping) and not _watches_nothing(configs):
        made.append(_with(EarlyStoppingCallback, configs.early_stopping, control))
    if not off(configs.model_checkpoint):
        made.append(_with(ModelCheckpointCallback, configs.model_checkpoint, control))
    if not off(configs.tensorboard):
        made.append(_with(TensorBoardCallBack, configs.tensorboard))
    if isinstance(configs.print_steps, int):
        made.append(PrintCallBack(configs.epoch_num, configs.print_steps))
    else:
        made.append(ProgressBarCallBack(configs.epoch_num, loader))
    return made


def _watches_nothing(configs: TrainingConfig) -> bool:
    """Return whether early stopping is at its default and has no metric."""
    return off(configs.metric) and configs.early_stopping == TrainingConfig().early_stopping


def _with(kind: Callable[..., Any], arguments: Any, *given: Any) -> Any:
    if not isinstance(arguments, dict):
        raise TypeError(f"{kind.__name__} is set by a dict of its arguments, got {arguments!r}")
    try:
        return kind(*given, **arguments)
    except TypeError as error:
        raise TypeError(f"{kind.__name__} does not take {arguments!r}: {error}") from error


def keep_best(configs: TrainingConfig) -> hooks.KeepBest:
    """Build the hook that restores the best weights, monitoring the same as early stopping."""
    stopping = configs.early_stopping
    usual = ("eval_epoch_loss", "min") if off(configs.metric) else ("eval_epoch_metric", "max")
    monitor, mode = usual
    if isinstance(stopping, dict) and not _watches_nothing(configs):
        monitor, mode = stopping.get("monitor", monitor), stopping.get("mode", "max")
    return hooks.KeepBest(NATIVE.get(monitor, monitor), mode=mode)  # type: ignore[arg-type]


def build_hooks(
    configs: TrainingConfig, callbacks: Iterable[Callback], built_in: Sequence[Callback]
) -> list[Hook]:
    """Build the hooks of callbacks and of the config."""
    made: list[Hook] = []
    for one, name in with_names(callbacks):
        try:
            if (hook := one.hook(Path(configs.output_dir))) is not None:
                hook.name = f"{name}.{hook.name}"
                made.append(hook)
        except ImportError as error:
            if one not in built_in:
                raise
            _log.warning(f"nothing is written for TensorBoard: {error}")
    made += [hooks.FreezeLayers(freeze_bn=True)] if configs.freeze_bn else []
    made += [keep_best(configs)] if configs.load_best_model_at_end else []
    return made
