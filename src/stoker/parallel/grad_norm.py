"""Norms of gradients that are plain, sharded, or on other processes."""

from collections.abc import Callable, Iterable

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor
from torch.nn.utils import clip_grad_value_, clip_grads_with_norm_, get_total_norm


def total_norm(
    tensors: Iterable[Tensor],
    norm_type: float = 2.0,
    *,
    groups: Iterable[dist.ProcessGroup] = (),
) -> Tensor:
    """Return the norm of all tensors as one vector, the same on every process that holds a part.

    Args:
        tensors: plain tensors and DTensors of any meshes, in any mixture.
        norm_type: which norm; ``inf`` is the largest absolute value.
        groups: process groups with further tensors of the vector, such as the stages of a
            pipeline. All of their processes must call it, even those without tensors.
    """
    groups = list(groups)
    norms = [_full(get_total_norm(part, norm_type)) for part in _by_mesh(tensors)]
    if len(norms) == 1 and not groups:
        return norms[0]
    first = norms[0] if norms else torch.zeros(())
    parts = torch.stack([norm.to(first.device, torch.float64) for norm in norms or [first]])
    is_max = norm_type == float("inf")
    combined = parts.max() if is_max else parts.pow(norm_type).sum()
    for group in groups:
        dist.all_reduce(combined, dist.ReduceOp.MAX if is_max else dist.ReduceOp.SUM, group)
    return (combined if is_max else combined.pow(1 / norm_type)).to(first.dtype)


def clip_grad_norm(
    parameters: Iterable[nn.Parameter],
    limit: float,
    norm_type: float = 2.0,
    *,
    groups: Iterable[dist.ProcessGroup] = (),
    counts: Callable[[nn.Parameter], bool] | None = None,
) -> Tensor:
    """Scale gradients to a total norm of at most ``limit``; return the norm before.

    Args:
        parameters: plain tensors and DTensors of any meshes; those without a gradient are skipped.
        limit: the maximum norm.
        norm_type: which norm.
        groups: process groups whose parameters belong to the same norm, see `total_norm`.
        counts: whether to count a parameter; a tied parameter counts in one process only.
    """
    held = [parameter for parameter in parameters if parameter.grad is not None]
    counted = held if counts is None else [parameter for parameter in held if counts(parameter)]
    norm = total_norm([p.grad for p in counted if p.grad is not None], norm_type, groups=groups)
    clip_to_norm(held, limit, norm)
    return norm


def clip_to_norm(parameters: Iterable[nn.Parameter], limit: float, norm: Tensor) -> None:
    """Scale gradients whose total norm is ``norm`` to one of at most ``limit``."""
    for part in _by_mesh(parameters):
        clip_grads_with_norm_(part, limit, norm)


def clip_grad_value(parameters: Iterable[nn.Parameter], limit: float) -> None:
    """Clip each element of the gradients to ``[-limit, limit]``."""
    for part in _by_mesh(parameters):
        clip_grad_value_(part, limit)


def _by_mesh(tensors: Iterable[Tensor]) -> list[list[Tensor]]:
    """Return the tensors grouped by mesh: torch's functions take those of one mesh at a time."""
    parts: dict[DeviceMesh | None, list[Tensor]] = {}
    for tensor in tensors:
        mesh = tensor.device_mesh if isinstance(tensor, DTensor) else None
        parts.setdefault(mesh, []).append(tensor)
    return list(parts.values())


def _full(norm: Tensor) -> Tensor:
    return norm.full_tensor() if isinstance(norm, DTensor) else norm
