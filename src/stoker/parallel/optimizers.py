"""Optimizers whose parameters have been split."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.optim import Optimizer

from stoker.parallel.grad_norm import mesh_of


def repoint(optimizer: Optimizer, replaced: Mapping[int, nn.Parameter | None]) -> None:
    """Let an optimizer update the parameters that have taken the place of its own.

    Groups, their order and their options stay. State that was there goes over to the new
    parameter; what has its shape is sharded like it, without communication.

    Args:
        optimizer: the optimizer, changed in place.
        replaced: by the ``id`` of an old parameter the new one, or None where this process has
            none for it. Parameters that are not among them stay.
    """
    for group in optimizer.param_groups:
        olds = group["params"]
        pairs = [(old, replaced.get(id(old), old)) for old in olds]
        group["params"] = [new for _, new in pairs if new is not None]
        for old, new in pairs:
            if old is new or old not in optimizer.state:
                continue
            state = optimizer.state.pop(old)
            if new is not None:
                optimizer.state[new] = {k: _placed(v, old, new) for k, v in state.items()}
    settle_optimizer(optimizer)


def settle_optimizer(optimizer: Optimizer) -> None:
    """Take one parameter after another where a group has some of several meshes.

    torch's implementations that take many at once ("foreach", "fused") cannot mix them.
    """
    for group in optimizer.param_groups:
        if len({mesh_of(parameter) for parameter in group["params"]}) > 1:
            group.update({key: False for key in ("foreach", "fused") if key in group})


def _placed(value: Any, old: Tensor, new: nn.Parameter) -> Any:
    """A value of the old parameter's state, for the new one."""
    fits = isinstance(value, Tensor) and value.shape == old.shape and old.dim() > 0
    if not fits or not isinstance(new, DTensor):
        return value
    return distribute_tensor(value, new.device_mesh, new.placements, src_data_rank=None)
