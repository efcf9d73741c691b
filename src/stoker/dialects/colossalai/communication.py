"""Send tensors between neighbouring stages of a pipeline.

Schedules do this themselves; the functions are for scripts with a schedule of their own. A stage
without that neighbour sends nothing and receives None.
"""

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as c10d
from torch import Tensor

from stoker.dialects.colossalai.context import global_context as gpc
from stoker.dialects.colossalai.ranks import ParallelMode
from stoker.engine.checks import resolve_device

Shape = Sequence[int] | torch.Size
_PIPELINE = ParallelMode.PIPELINE


def recv_forward(
    input_tensor_shape: Shape, prev_rank: int | None = None, dtype: torch.dtype = torch.float
) -> Any:
    """Receive the output of the previous stage."""
    return _exchange(prev=prev_rank, from_prev=input_tensor_shape, dtype=dtype)[0]


def recv_backward(
    output_grad_shape: Shape, next_rank: int | None = None, dtype: torch.dtype = torch.float
) -> Any:
    """Receive the gradient from the next stage."""
    return _exchange(next=next_rank, from_next=output_grad_shape, dtype=dtype)[1]


def send_forward(output_tensor: Tensor, next_rank: int | None = None) -> None:
    """Send an output to the next stage."""
    _exchange(next=next_rank, to_next=output_tensor)


def send_backward(input_tensor_grad: Tensor, prev_rank: int | None = None) -> None:
    """Send a gradient to the previous stage."""
    _exchange(prev=prev_rank, to_prev=input_tensor_grad)


def send_forward_recv_backward(
    output_tensor: Tensor,
    output_grad_shape: Shape,
    recv_next: bool = True,
    next_rank: int | None = None,
    dtype: torch.dtype = torch.float,
) -> Any:
    """Send an output to the next stage, and receive a gradient from it."""
    wanted = output_grad_shape if recv_next else None
    return _exchange(next=next_rank, to_next=output_tensor, from_next=wanted, dtype=dtype)[1]


def send_backward_recv_forward(
    input_tensor_grad: Tensor,
    input_tensor_shape: Shape,
    recv_prev: bool = True,
    prev_rank: int | None = None,
    dtype: torch.dtype = torch.float,
) -> Any:
    """Send a gradient to the previous stage, and receive an output from it."""
    wanted = input_tensor_shape if recv_prev else None
    return _exchange(prev=prev_rank, to_prev=input_tensor_grad, from_prev=wanted, dtype=dtype)[0]


def send_obj_meta(obj: Tensor, need_meta: bool = True, next_rank: int | None = None) -> bool:
    """Send the shape of a tensor to the next stage; return False, for the next call."""
    if need_meta:
        shape = torch.tensor(obj.shape)
        send_forward(torch.tensor([len(shape)]), next_rank)
        send_forward(shape, next_rank)
    return False


def recv_obj_meta(obj_shape: Shape | None = None, prev_rank: int | None = None) -> Any:
    """Receive the shape of a tensor from the previous stage, unless it is known."""
    if obj_shape is not None or gpc.is_first_rank(_PIPELINE):
        return obj_shape
    count = recv_forward((1,), prev_rank, torch.int64)
    return torch.Size(recv_forward((int(count),), prev_rank, torch.int64).tolist())


def _exchange(
    *,
    prev: int | None = None,
    next: int | None = None,
    to_prev: Tensor | None = None,
    to_next: Tensor | None = None,
    from_prev: Shape | None = None,
    from_next: Shape | None = None,
    dtype: torch.dtype = torch.float,
) -> tuple[Any, Any]:
    """Send and receive at the same time; return the tensors of the two neighbours."""
    before = gpc.get_prev_global_rank(_PIPELINE) if prev is None else prev
    after = gpc.get_next_global_rank(_PIPELINE) if next is None else next
    operations, received = [], []
    for peer, is_edge, sent, shape in (
        (before, gpc.is_first_rank(_PIPELINE), to_prev, from_prev),
        (after, gpc.is_last_rank(_PIPELINE), to_next, from_next),
    ):
        tensor = None
        if sent is not None and not is_edge:
            operations.append(c10d.P2POp(c10d.isend, sent.detach().contiguous(), peer))
        if shape is not None and not is_edge:
            tensor = torch.empty(tuple(shape), dtype=dtype, device=resolve_device("auto"))
            operations.append(c10d.P2POp(c10d.irecv, tensor, peer))
        received.append(tensor)
    for work in c10d.batch_isend_irecv(operations) if operations else ():
        work.wait()
    for tensor in received:
        if tensor is not None and tensor.is_floating_point():
            tensor.requires_grad_()
    return received[0], received[1]
