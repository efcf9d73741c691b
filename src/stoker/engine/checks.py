"""Check the arguments of an engine before anything runs."""

import os
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import LBFGS, Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from stoker.core import dist
from stoker.core.errors import check_number, did_you_mean
from stoker.core.log import get_logger
from stoker.engine.fused import suggest_fused

_log = get_logger()

_DEVICES = ("auto", "cpu", "cuda", "mps", "xpu")

_VISIBLE = (
    "CUDA_VISIBLE_DEVICES",
    "HIP_VISIBLE_DEVICES",
    "ROCR_VISIBLE_DEVICES",
    "ZE_AFFINITY_MASK",
    "ASCEND_RT_VISIBLE_DEVICES",
)
"""Variables by which Slurm, Ray and others show a process its own devices only."""


def check_arguments(
    model: Any,
    criterion: Any,
    lr_step: str,
    clip_norm: float | None,
    clip_value: float | None,
    layout: Any = None,
) -> None:
    """Check that the model is a module, the criterion is callable and limits are not negative."""
    if not isinstance(model, nn.Module):
        raise TypeError(f"model is {_describe(model)}, expected a torch.nn.Module")
    if _kind(model) in ("DistributedDataParallel", "FullyShardedDataParallel"):
        raise TypeError(
            f"model is wrapped in {_kind(model)}, which the engine does itself: pass the model "
            "without the wrapper, and a layout"
        )
    if criterion is not None and (not callable(criterion) or isinstance(criterion, type)):
        raise TypeError(
            f"criterion is {_describe(criterion)}, expected a loss function such as "
            "nn.CrossEntropyLoss()"
        )
    if layout is not None and (isinstance(layout, type) or not hasattr(layout, "filled")):
        raise TypeError(f"layout is {layout!r}, expected a Layout such as Layout(replicate=-1)")
    if lr_step not in ("step", "epoch"):
        raise ValueError(f"lr_step must be 'step' or 'epoch', got {lr_step!r}")
    for name, limit in (("clip_norm", clip_norm), ("clip_value", clip_value)):
        if limit is not None:
            check_number(name, limit)
        if limit is not None and not limit >= 0:
            raise ValueError(f"{name} must be positive, or 0 or None for no limit, got {limit}")


def resolve_device(device: str | torch.device) -> torch.device:
    """Return the device of that name, checked to exist on this machine.

    "auto" is the accelerator that torch finds, or the CPU. In a job of several processes, a device
    without an index is the one of this process: that of its local rank. Devices other than the CPU
    are implemented but not tested: no test machine had one.
    """
    requested = None if device == "auto" else _parse_device(device)
    if requested is not None and requested.type == "cpu":
        return requested
    found = torch.accelerator.current_accelerator(check_available=True)
    if requested is None:
        if found is None:
            return torch.device("cpu")
        requested = torch.device(found.type)
    if found is None or found.type != requested.type:
        available = f"{found.type} and cpu" if found is not None else "cpu only"
        raise ValueError(
            f"device '{requested}' was requested, but this machine has {available}: "
            "use device='auto' or device='cpu'"
        )
    count = torch.accelerator.device_count()
    if requested.index is not None and requested.index >= count:
        raise ValueError(
            f"device '{requested}' was requested, but there are {count}: "
            f"{requested.type}:0 to {requested.type}:{count - 1}"
        )
    has_index = requested.index is not None
    return requested if has_index else _device_of_process(requested.type, count)


def select_device(device: torch.device) -> None:
    """Make a device the current one of torch: streams, collectives and `synchronize` use it."""
    if device.type != "cpu" and device.index is not None:
        torch.accelerator.set_device_index(device.index)


def _parse_device(device: str | torch.device) -> torch.device:
    try:
        return torch.device(device)
    except (RuntimeError, TypeError) as error:
        near = "; did you mean 'auto'?" if device in ("gpu", "tpu", None) else ""
        raise ValueError(
            f"device {device!r} is unknown: expected one of {', '.join(_DEVICES)}, "
            f"with an index like 'cuda:2' if there are several{near}"
        ) from error


def _device_of_process(kind: str, count: int) -> torch.device:
    """Return the device of this process: each of a machine has its own."""
    rank = dist.local_rank(os.environ)
    if rank is None:
        return torch.device(kind)
    if rank < count:
        return torch.device(kind, rank)
    is_own = count == 1 and "TORCHELASTIC_RUN_ID" not in os.environ  # torchrun shows all to each
    if is_own and any(_lists_one(os.environ.get(name)) for name in _VISIBLE):
        return torch.device(kind, 0)
    devices = f"{count} {kind} device{'s' if count != 1 else ''}"
    raise ValueError(
        f"this is process {rank} on its machine, counted from 0, but it sees {devices}: start one "
        f"process per device, or use device='cpu'"
    )


def _lists_one(devices: str | None) -> bool:
    return bool(devices) and len(str(devices).split(",")) == 1


def check_optimizer(optimizer: Any, model: nn.Module, criterion: Any) -> dict[str, Optimizer]:
    """Return the optimizers by name, checked to hold parameters of the model or the criterion."""
    if optimizer is None:
        return {}
    named = dict(optimizer) if isinstance(optimizer, Mapping) else {"": optimizer}
    known = {id(parameter) for parameter in model.parameters()}
    if isinstance(criterion, nn.Module):
        known |= {id(parameter) for parameter in criterion.parameters()}
    for name, one in named.items():
        label = f"optimizer {name!r}" if name else "optimizer"
        if isinstance(one, type) or not all(
            hasattr(one, part) for part in ("step", "zero_grad", "param_groups")
        ):
            raise TypeError(f"{label} is {_describe(one)}, expected a torch.optim.Optimizer object")
        if isinstance(one, LBFGS):
            raise TypeError(
                f"{label} is LBFGS, which calls the model itself several times per step: train "
                "with LBFGS in your own loop"
            )
        held: list[Tensor] = [p for group in one.param_groups for p in group["params"]]
        foreign = [p for p in held if id(p) not in known]
        if foreign:
            raise ValueError(
                f"{label} holds {len(foreign)} of {len(held)} parameters that are not the "
                f"model's (first: shape {list(foreign[0].shape)}): build it from "
                "model.parameters() of the model that you pass to the engine"
            )
    return named


def list_optimizers(optimizer: Any) -> list[Optimizer]:
    """Return one optimizer, several by name, or none, as a list."""
    if optimizer is None:
        return []
    return list(optimizer.values()) if isinstance(optimizer, Mapping) else [optimizer]


def check_scheduler(scheduler: Any, optimizers: Mapping[str, Optimizer]) -> dict[str, LRScheduler]:
    """Return the LR schedulers by the names of their optimizers."""
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
            raise TypeError(
                f"lr_scheduler is {_describe(one)}, expected a torch learning-rate scheduler"
            )
        if name and name not in optimizers:
            raise ValueError(
                f"lr_scheduler has {name!r}, but no optimizer has that name"
                f"{did_you_mean(name, optimizers)} (optimizers: "
                f"{', '.join(map(repr, optimizers))})"
            )
        driven = getattr(one, "optimizer", None)
        if driven is not None and all(driven is not optimizer for optimizer in optimizers.values()):
            raise ValueError(
                "lr_scheduler drives an optimizer that is not the engine's: build it from the "
                "optimizer that you pass to the engine"
            )
        if not name and driven is not None:
            key = next(key for key, optimizer in optimizers.items() if optimizer is driven)
            return {key: one}
    return named


def check_trainable(engine: Any) -> None:
    """Check that there are parameters to train; report those in no optimizer, and faster ways."""
    named = list(engine.model.named_parameters())
    is_complete = engine.stages is None  # all parameters of one pipeline stage may be frozen
    if is_complete and not any(parameter.requires_grad for _, parameter in named):
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
    suggest_fused(engine)


def _describe(thing: Any) -> str:
    if isinstance(thing, type):
        return f"the class {thing.__name__} itself (call it first)"
    return f"a {_kind(thing)}"


def _kind(thing: Any) -> str:
    return type(thing).__name__
