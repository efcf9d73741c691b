"""What an engine refuses, in words, before anything runs."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn
from torch.optim import LBFGS, Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from stoker.core.errors import did_you_mean
from stoker.core.log import get_logger
from stoker.engine.fused import tell_of_fused

_log = get_logger()


def check_parts(
    model: Any, criterion: Any, lr_step: str, clip_norm: float | None, clip_value: float | None
) -> None:
    """The model is a module, the criterion can be called, limits are not negative."""
    if not isinstance(model, nn.Module):
        raise TypeError(f"model is a {_kind(model)}, expected a torch.nn.Module")
    if _kind(model) in ("DistributedDataParallel", "FullyShardedDataParallel"):
        raise TypeError(
            f"model is wrapped in {_kind(model)}, which is the engine's business: give the model "
            "itself, and a layout"
        )
    if criterion is not None and (not callable(criterion) or isinstance(criterion, type)):
        raise TypeError(
            f"criterion is {_a(criterion)}, expected a loss function such as nn.CrossEntropyLoss()"
        )
    if lr_step not in ("step", "epoch"):
        raise ValueError(f"lr_step is 'step' or 'epoch', got {lr_step!r}")
    for name, limit in (("clip_norm", clip_norm), ("clip_value", clip_value)):
        if limit is not None and limit < 0:
            raise ValueError(f"{name} is a positive limit, or 0 or None for none, got {limit}")


def check_optimizer(optimizer: Any, model: nn.Module, criterion: Any) -> dict[str, Optimizer]:
    """The optimizers by name, each over parameters of the model (or of the criterion)."""
    if optimizer is None:
        return {}
    named = dict(optimizer) if isinstance(optimizer, Mapping) else {"": optimizer}
    own = {id(parameter) for parameter in model.parameters()}
    if isinstance(criterion, nn.Module):
        own |= {id(parameter) for parameter in criterion.parameters()}
    for name, one in named.items():
        label = f"optimizer {name!r}" if name else "optimizer"
        if isinstance(one, type) or not all(
            hasattr(one, part) for part in ("step", "zero_grad", "param_groups")
        ):
            raise TypeError(f"{label} is {_a(one)}, expected a torch.optim.Optimizer object")
        if isinstance(one, LBFGS):
            raise TypeError(
                f"{label} is LBFGS, which calls the model itself several times a step: train it in "
                "a loop of your own"
            )
        held: list[Tensor] = [p for group in one.param_groups for p in group["params"]]
        foreign = [p for p in held if id(p) not in own]
        if foreign:
            raise ValueError(
                f"{label} holds {len(foreign)} of {len(held)} parameters that are not the "
                f"model's (first: shape {list(foreign[0].shape)}): build it from "
                "model.parameters() of the model that the engine gets"
            )
    return named


def optimizers_of(optimizer: Any) -> list[Optimizer]:
    """One optimizer, several by name, or none, as a list."""
    if optimizer is None:
        return []
    return list(optimizer.values()) if isinstance(optimizer, Mapping) else [optimizer]


def check_scheduler(scheduler: Any, optimizers: Mapping[str, Optimizer]) -> dict[str, LRScheduler]:
    """The schedulers by the name of their optimizer."""
    if scheduler is None:
        return {}
    named = dict(scheduler) if isinstance(scheduler, Mapping) else {"": scheduler}
    for name, one in named.items():
        if isinstance(one, ReduceLROnPlateau):
            raise TypeError(
                "ReduceLROnPlateau needs a metric: pass it as a hook, "
                "hooks.Plateau(scheduler, monitor='val/loss'), and not as lr_scheduler"
            )
        if isinstance(one, type) or not callable(getattr(one, "step", None)):
            raise TypeError(f"lr_scheduler is {_a(one)}, expected a torch learning-rate scheduler")
        if name and name not in optimizers:
            raise ValueError(
                f"lr_scheduler has {name!r}, which is no optimizer{did_you_mean(name, optimizers)}"
                f" (there is {', '.join(map(repr, optimizers))})"
            )
        driven = getattr(one, "optimizer", None)
        if driven is not None and all(driven is not optimizer for optimizer in optimizers.values()):
            raise ValueError("lr_scheduler drives another optimizer than the engine's")
        if not name and driven is not None:
            key = next(key for key, optimizer in optimizers.items() if optimizer is driven)
            return {key: one}
    return named


def check_trainable(engine: Any) -> None:
    """There is something to train; what is in no optimizer, or would be faster, is said."""
    named = list(engine.model.named_parameters())
    whole = engine.stages is None  # all of a stage may be frozen, where others are trained
    if whole and not any(parameter.requires_grad for _, parameter in named):
        raise ValueError(
            f"{_kind(engine.model)} has no trainable parameters: every one of its {len(named)} has "
            "requires_grad=False"
        )
    groups = [group for one in engine.optimizers.values() for group in one.param_groups]
    held = {id(parameter) for group in groups for parameter in group["params"]}
    left_out = [name for name, p in named if p.requires_grad and id(p) not in held]
    if left_out:
        _log.warning(
            f"{len(left_out)} trainable parameters are in no optimizer and will not change "
            f"(first: {left_out[0]})"
        )
    tell_of_fused(engine)


def _a(thing: Any) -> str:
    if isinstance(thing, type):
        return f"the class {thing.__name__} itself (call it first)"
    return f"a {_kind(thing)}"


def _kind(thing: Any) -> str:
    return type(thing).__name__
