"""The norm of gradients that are whole, sharded, or on other processes altogether."""

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
    over: Iterable[dist.ProcessGroup] = (),
) -> Tensor:
    """The norm of all tensors as one vector, the same on every process that holds a part of it.

    Args:
        tensors: plain ones and DTensors of any meshes, mixed as they come.
        norm_type: which norm; ``inf`` is the largest absolute value.
        over: groups of processes with further tensors of the vector, such as the stages of a
            pipeline. Each of them must call this, also one that has no tensors.
    """
    groups = list(over)
    norms = [_whole(get_total_norm(part, norm_type)) for part in _by_mesh(tensors)]
    if len(norms) == 1 and not groups:
        return norms[0]
    first = norms[0] if norms else torch.zeros(())
    parts = torch.stack([norm.to(first.device, torch.float64) for norm in norms or [first]])
    largest = norm_type == float("inf")
    combined = parts.max() if largest else parts.pow(norm_type).sum()
    for group in groups:
        dist.all_reduce(combined, dist.ReduceOp.MAX if largest else dist.ReduceOp.SUM, group)
    return (combined if largest else combined.pow(1 / norm_type)).to(first.dtype)


def clip_grad_norm(
    parameters: Iterable[nn.Parameter],
    limit: float,
    norm_type: float = 2.0,
    *,
    over: Iterable[dist.ProcessGroup] = (),
    counts: Callable[[nn.Parameter], bool] | None = None,
) -> Tensor:
    """Scale gradients down to a total norm of ``limit``; the norm they had.

    Args:
        parameters: plain ones and DTensors of any meshes; those without a gradient are passed by.
        limit: the norm that may not be passed.
        norm_type: which norm.
        over: groups of processes whose parameters belong to the same norm, see `total_norm`.
        counts: whether a parameter counts here; a tied one that another process counts does not.
    """
    held = [parameter for parameter in parameters if parameter.grad is not None]
    counted = held if counts is None else [parameter for parameter in held if counts(parameter)]
    norm = total_norm([p.grad for p in counted if p.grad is not None], norm_type, over=over)
    for part in _by_mesh(held):
        clip_grads_with_norm_(part, limit, norm)
    return norm


def clip_grad_value(parameters: Iterable[nn.Parameter], limit: float) -> None:
    """Bring every number of the gradients between ``-limit`` and ``limit``."""
    for part in _by_mesh(parameters):
        clip_grad_value_(part, limit)


def _by_mesh(tensors: Iterable[Tensor]) -> list[list[Tensor]]:
    """The tensors apart by where they live, for torch computes with those of one mesh at once."""
    parts: dict[DeviceMesh | None, list[Tensor]] = {}
    for tensor in tensors:
        parts.setdefault(mesh_of(tensor), []).append(tensor)
    return list(parts.values())


def mesh_of(tensor: Tensor) -> DeviceMesh | None:
    """The mesh that a tensor is spread over; None where it is a plain one."""
    return tensor.device_mesh if isinstance(tensor, DTensor) else None


def _whole(norm: Tensor) -> Tensor:
    return norm.full_tensor() if isinstance(norm, DTensor) else norm
