"""Send tensors between neighbouring stages of a pipeline, for scripts with their own schedule.

A stage without that neighbour sends nothing and receives None. Tensors and shapes may be lists.
``scatter_gather_tensors`` changes nothing: tensors are sent as they are.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from stoker.core import dist
from stoker.dialects.colossalai.context import global_context as gpc
from stoker.dialects.colossalai.ranks import ParallelMode
from stoker.engine.checks import resolve_device

_PIPELINE = ParallelMode.PIPELINE


def _talk(
    to_next: Any = None,
    to_prev: Any = None,
    prev_shape: Any = None,
    next_shape: Any = None,
    *,
    prev_rank: int | None = None,
    next_rank: int | None = None,
    dtype: torch.dtype = torch.float,
) -> tuple[Any, Any]:
    """Send to the neighbours and receive from them at once: from the previous and from the next."""
    received, transfers = [], []
    for is_edge, find, rank, sent, shape in (
        (gpc.is_first_rank, gpc.get_prev_global_rank, prev_rank, to_prev, prev_shape),
        (gpc.is_last_rank, gpc.get_next_global_rank, next_rank, to_next, next_shape),
    ):
        made = None if shape is None or is_edge(_PIPELINE) else _buffers(shape, dtype)
        if not is_edge(_PIPELINE) and (sent is not None or made is not None):
            peer = find(_PIPELINE) if rank is None else rank
            transfers.append((peer, _as_list(sent), _as_list(made)))
        received.append(made)
    dist.exchange(transfers)
    for one in (one for made in received for one in _as_list(made)):
        one.requires_grad_(dtype.is_floating_point)
    return received[0], received[1]


def _buffers(shape: Any, dtype: torch.dtype) -> Any:
    """Return a tensor of a shape, or a list of tensors for a list of shapes."""
    if len(shape) and isinstance(shape[0], Sequence):
        return [_buffers(one, dtype) for one in shape]
    return torch.empty(tuple(shape), dtype=dtype, device=resolve_device("auto"))


def _as_list(tensors: Any) -> list[Tensor]:
    if tensors is None or isinstance(tensors, Tensor):
        return [] if tensors is None else [tensors]
    return list(tensors)


def recv_forward(
    input_tensor_shape: Any,
    prev_rank: int | None = None,
    dtype: torch.dtype = torch.float,
    scatter_gather_tensors: bool = False,
) -> Any:
    """Return the outputs of the previous stage."""
    return _talk(prev_shape=input_tensor_shape, prev_rank=prev_rank, dtype=dtype)[0]


def recv_backward(
    output_grad_shape: Any,
    next_rank: int | None = None,
    dtype: torch.dtype = torch.float,
    scatter_gather_tensors: bool = False,
) -> Any:
    """Return the gradients of the next stage."""
    return _talk(next_shape=output_grad_shape, next_rank=next_rank, dtype=dtype)[1]


def send_forward(
    output_tensor: Any, next_rank: int | None = None, scatter_gather_tensors: bool = False
) -> None:
    """Send outputs to the next stage."""
    _talk(to_next=output_tensor, next_rank=next_rank)


def send_backward(
    input_tensor_grad: Any, prev_rank: int | None = None, scatter_gather_tensors: bool = False
) -> None:
    """Send gradients to the previous stage."""
    _talk(to_prev=input_tensor_grad, prev_rank=prev_rank)


def send_forward_recv_backward(
    output_tensor: Any,
    output_grad_shape: Any,
    recv_next: bool = True,
    next_rank: int | None = None,
    dtype: torch.dtype = torch.float,
    scatter_gather_tensors: bool = False,
) -> Any:
    """Send outputs to the next stage and return its gradients."""
    shape = output_grad_shape if recv_next else None
    return _talk(to_next=output_tensor, next_shape=shape, next_rank=next_rank, dtype=dtype)[1]


def send_backward_recv_forward(
    input_tensor_grad: Any,
    input_tensor_shape: Any,
    recv_prev: bool = True,
    prev_rank: int | None = None,
    dtype: torch.dtype = torch.float,
    scatter_gather_tensors: bool = False,
) -> Any:
    """Send gradients to the previous stage and return its outputs."""
    shape = input_tensor_shape if recv_prev else None
    return _talk(to_prev=input_tensor_grad, prev_shape=shape, prev_rank=prev_rank, dtype=dtype)[0]


def send_forward_recv_forward(
    output_tensor: Any,
    input_tensor_shape: Any,
    recv_prev: bool = True,
    prev_rank: int | None = None,
    next_rank: int | None = None,
    dtype: torch.dtype = torch.float,
    scatter_gather_tensors: bool = False,
) -> Any:
    """Send outputs to the next stage and return those of the previous."""
    shape = input_tensor_shape if recv_prev else None
    ranks = {"prev_rank": prev_rank, "next_rank": next_rank}
    return _talk(to_next=output_tensor, prev_shape=shape, **ranks, dtype=dtype)[0]


def send_backward_recv_backward(
    input_tensor_grad: Any,
    output_grad_shape: Any,
    recv_next: bool = True,
    prev_rank: int | None = None,
    next_rank: int | None = None,
    dtype: torch.dtype = torch.float,
    scatter_gather_tensors: bool = False,
) -> Any:
    """Send gradients to the previous stage and return those of the next."""
    shape = output_grad_shape if recv_next else None
    ranks = {"prev_rank": prev_rank, "next_rank": next_rank}
    return _talk(to_prev=input_tensor_grad, next_shape=shape, **ranks, dtype=dtype)[1]


def send_forward_backward_recv_forward_backward(
    output_tensor: Any,
    input_tensor_grad: Any,
    input_tensor_shape: Any,
    output_grad_shape: Any,
    recv_prev: bool = True,
    recv_next: bool = True,
    prev_rank: int | None = None,
    next_rank: int | None = None,
    dtype: torch.dtype = torch.float,
    scatter_gather_tensors: bool = False,
) -> tuple[Any, Any]:
    """Send to both neighbours, and return outputs of the previous and gradients of the next."""
    shapes = (input_tensor_shape if recv_prev else None, output_grad_shape if recv_next else None)
    ranks = {"prev_rank": prev_rank, "next_rank": next_rank}
    return _talk(output_tensor, input_tensor_grad, *shapes, **ranks, dtype=dtype)


def send_obj_meta(obj: Any, need_meta: bool = True, next_rank: int | None = None) -> bool:
    """Send the shapes of tensors to the next stage; return False, for the next call."""
    if need_meta:
        numbers = [int(isinstance(obj, Tensor))]
        for one in _as_list(obj):
            numbers += [one.dim(), *one.shape]
        send_forward(torch.tensor([len(numbers)]), next_rank)
        send_forward(torch.tensor(numbers), next_rank)
    return False


def recv_obj_meta(obj_shape: Any = None, prev_rank: int | None = None) -> Any:
    """Receive the shapes of tensors from the previous stage, unless they are known."""
    if obj_shape is not None or gpc.is_first_rank(_PIPELINE):
        return obj_shape
    count = int(recv_forward((1,), prev_rank, torch.int64))
    is_single, *numbers = recv_forward((count,), prev_rank, torch.int64).tolist()
    shapes = []
    while numbers:
        end = 1 + numbers[0]
        shapes.append(torch.Size(numbers[1:end]))
        numbers = numbers[end:]
    return shapes[0] if is_single else shapes
