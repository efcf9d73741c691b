"""Choose between the "foreach", "fused" and plain implementations of torch's optimizers."""

import inspect
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.optim import SGD, Adagrad, Adam, AdamW, Optimizer, RMSprop

from stoker.core.log import get_logger
from stoker.core.tree import is_sharded

_log = get_logger()

_LARGE = 100_000  # parameters; below this, the update is small compared with forward and backward
_EXACT_DTYPES = (torch.float32, torch.float64)  # torch 2.13 is wrong for half precision
_SAME_BITS = (Adam, AdamW, SGD, RMSprop, Adagrad)
_CHOICES = ("fused", "foreach")
_IMPLEMENTATIONS = ("fused", "foreach", "capturable", "differentiable")


def prefer_foreach(optimizer: Optimizer) -> None:
    """Use the "foreach" implementation for a small model, where it gives the same bits.

    On the CPU it does the same arithmetic in half the calls. Large models gain nothing and would
    need more memory. An implementation that you have chosen stays.
    """
    groups = optimizer.param_groups
    parameters = [parameter for group in groups for parameter in group["params"]]
    if type(optimizer) not in _SAME_BITS or sum(p.numel() for p in parameters) >= _LARGE:
        return
    plain = all(
        p.device.type == "cpu" and p.dtype in _EXACT_DTYPES and not is_sharded(p)
        for p in parameters
    )
    if plain and not any(group.get(choice) is not None for group in groups for choice in _CHOICES):
        for group in groups:
            group["foreach"] = not any(group.get(choice) for choice in _IMPLEMENTATIONS)


def can_fuse(kind: Any, parameters: Iterable[Tensor], device: torch.device) -> bool:
    """Return whether this class of optimizer has ``fused=True``, correct and faster on ``device``.

    This is known for the CPU only. On other devices torch's own choice stays.
    """
    try:
        accepted = inspect.signature(kind).parameters
    except (ValueError, TypeError):
        return False
    exact = device.type == "cpu" and all(p.dtype in _EXACT_DTYPES for p in parameters)
    return exact and "fused" in accepted


def suggest_fused(engine: Any) -> None:
    """Log what ``fused=True`` would save, if no implementation has been chosen."""
    for name, optimizer in engine.optimizers.items():
        groups, kind = optimizer.param_groups, type(optimizer)
        parameters = [p for group in groups for p in group["params"]]
        chosen = any(group.get(choice) for group in groups for choice in _IMPLEMENTATIONS)
        rejected = any(group.get("fused") is False for group in groups)
        size = sum(parameter.numel() for parameter in parameters)
        if chosen or rejected or size < _LARGE or not can_fuse(kind, parameters, engine.device):
            continue
        key = f"optimizer.{name}" if name else "optimizer"
        _log.hint(
            f"{key}.fused=auto, or {kind.__name__}(…, fused=True), updates faster and rounds a "
            "little differently"
        )


def keep_implementation(optimizer: Optimizer, saved: Mapping[str, Any]) -> dict[str, Any]:
    """Return a saved state with the implementation that this optimizer was made with."""
    if len(saved["param_groups"]) != len(optimizer.param_groups):
        return dict(saved)  # torch raises an error for it
    groups = [
        {**group, **{key: own[key] for key in _CHOICES if key in own and key in group}}
        for group, own in zip(saved["param_groups"], optimizer.param_groups, strict=True)
    ]
    return {**saved, "param_groups": groups}


def is_fused(optimizer: Optimizer) -> bool:
    """Return whether the optimizer updates all parameters of a group in one call."""
    return any(group.get("fused") for group in optimizer.param_groups)
