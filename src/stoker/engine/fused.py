"""Optimizers that update many parameters in one call, which torch calls "foreach" and "fused"."""

import inspect
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.optim import SGD, Adagrad, Adam, AdamW, Optimizer, RMSprop

from stoker.core.log import get_logger
from stoker.core.tree import is_sharded

_log = get_logger()

_ENOUGH = 100_000  # parameters, from which the saving shows beside forward and backward
_RIGHT = (torch.float32, torch.float64)  # in half precisions, that of torch 2.13 is not right
_SAME_BITS = (Adam, AdamW, SGD, RMSprop, Adagrad)
_CHOSEN = ("fused", "foreach")
_WAYS = ("fused", "foreach", "capturable", "differentiable")


def take_lists(optimizer: Optimizer) -> None:
    """Let the update of a small model go through lists of tensors, where that gives the same bits.

    On the CPU it is the same arithmetic in half the calls. Large models gain nothing by it and
    would need more memory. Whoever has chosen a way keeps it.
    """
    groups = optimizer.param_groups
    parameters = [parameter for group in groups for parameter in group["params"]]
    if type(optimizer) not in _SAME_BITS or sum(p.numel() for p in parameters) >= _ENOUGH:
        return
    plain = all(
        p.device.type == "cpu" and p.dtype in _RIGHT and not is_sharded(p) for p in parameters
    )
    if plain and not any(group.get(way) is not None for group in groups for way in _CHOSEN):
        for group in groups:
            group["foreach"] = not any(group.get(way) for way in _WAYS)


def can_fuse(kind: Any, parameters: Iterable[Tensor], device: torch.device) -> bool:
    """Whether ``fused=True`` is there for this class of optimizer, and right and faster here.

    That is known of the CPU. On other devices torch's own choice stands.
    """
    try:
        taken = inspect.signature(kind).parameters
    except (ValueError, TypeError):
        return False
    fits = device.type == "cpu" and all(p.dtype in _RIGHT for p in parameters)
    return fits and "fused" in taken


def tell_of_fused(engine: Any) -> None:
    """Say once what would be saved, where nobody has chosen."""
    for name, optimizer in engine.optimizers.items():
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        chosen = any(group.get(way) for group in optimizer.param_groups for way in _WAYS)
        refused = any(group.get("fused") is False for group in optimizer.param_groups)
        size = sum(parameter.numel() for parameter in parameters)
        kind = type(optimizer)
        if chosen or refused or size < _ENOUGH or not can_fuse(kind, parameters, engine.device):
            continue
        at = f"optimizer.{name}" if name else "optimizer"
        _log.info(
            f"{kind.__name__} updates {size:,} parameters one tensor after another; all at once "
            f"takes a fraction of the time and rounds a little differently: {at}.fused=auto in a "
            f"config, {kind.__name__}(…, fused=True) in a script (False keeps it as it is)"
        )


def in_its_own_way(optimizer: Optimizer, saved: Mapping[str, Any]) -> dict[str, Any]:
    """A saved state for this optimizer, which goes on in the way it was made for."""
    if len(saved["param_groups"]) != len(optimizer.param_groups):
        return dict(saved)  # torch will say it
    groups = [
        {**group, **{way: own[way] for way in ("fused", "foreach") if way in own and way in group}}
        for group, own in zip(saved["param_groups"], optimizer.param_groups, strict=True)
    ]
    return {**saved, "param_groups": groups}


def is_fused(optimizer: Optimizer) -> bool:
    """Whether it updates all parameters of a group in one call."""
    return any(group.get("fused") for group in optimizer.param_groups)
