"""Send tensors between neighbouring stages of a pipeline, for scripts with their own schedule.

A stage without that neighbour sends nothing and receives None. Tensors and shapes may be lists.
``scatter_gather_tensors`` changes nothing: tensors are sent as they are.
"""

from collections.abc import Sequence
from inspect import Parameter, Signature, signature
from typing import Any

import torch
from torch import Tensor

from stoker.core import dist
from stoker.dialects.colossalai.context import global_context as gpc
from stoker.dialects.colossalai.ranks import ParallelMode
from stoker.engine.checks import resolve_device

_PIPELINE = ParallelMode.PIPELINE


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
    prev_shape = input_tensor_shape if recv_prev else None
    next_shape = output_grad_shape if recv_next else None
    received, transfers = [], []
    for is_edge, find, rank, sent, shape in (
        (gpc.is_first_rank, gpc.get_prev_global_rank, prev_rank, input_tensor_grad, prev_shape),
        (gpc.is_last_rank, gpc.get_next_global_rank, next_rank, output_tensor, next_shape),
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


_COMPLETE = signature(send_forward_backward_recv_forward_backward).parameters
_NOTHING = {name: None for name, one in _COMPLETE.items() if one.default is Parameter.empty}
_HALVES = {
    "send_forward": ("output_tensor next_rank", "Send outputs to the next stage"),
    "send_backward": ("input_tensor_grad prev_rank", "Send gradients to the previous stage"),
    "recv_forward": ("input_tensor_shape prev_rank dtype", "Return those of the previous stage"),
    "recv_backward": ("output_grad_shape next_rank dtype", "Return those of the next stage"),
}
"""The parameters of sending and of receiving, and what they do; a name may join one of each."""


def _part(name: str) -> Any:
    """Return the function of a name: some of the parameters of the complete one and of its results.

    One that sends and receives also has ``recv_prev`` or ``recv_next``.
    """
    halves = [half for half in _HALVES if half in name]
    taken = [*" ".join(_HALVES[half][0] for half in halves).split(), "scatter_gather_tensors"]
    if len(halves) == 2:
        taken.append("recv_prev" if name.endswith("recv_forward") else "recv_next")
    own = Signature([one for parameter, one in _COMPLETE.items() if parameter in taken])

    def transfer(*args: Any, **options: Any) -> Any:
        given = own.bind(*args, **options).arguments
        found = send_forward_backward_recv_forward_backward(**{**_NOTHING, **given})
        return found["recv_backward" in name] if "recv" in name else None

    transfer.__name__ = transfer.__qualname__ = name
    transfer.__doc__ = ". ".join(_HALVES[half][1] for half in halves) + "."
    transfer.__dict__["__signature__"] = own
    return transfer


recv_forward, recv_backward = _part("recv_forward"), _part("recv_backward")
send_forward, send_backward = _part("send_forward"), _part("send_backward")
send_forward_recv_backward = _part("send_forward_recv_backward")
send_backward_recv_forward = _part("send_backward_recv_forward")
send_forward_recv_forward = _part("send_forward_recv_forward")
send_backward_recv_backward = _part("send_backward_recv_backward")


def send_obj_meta(obj: Any, need_meta: bool = True, next_rank: int | None = None) -> bool:
    """Send the shapes of tensors to the next stage; return False, for the next call."""
    if need_meta and not gpc.is_last_rank(_PIPELINE):
        peer = gpc.get_next_global_rank(_PIPELINE) if next_rank is None else next_rank
        shapes = [one.shape for one in _as_list(obj)]
        dist.send_object(shapes[0] if isinstance(obj, Tensor) else shapes, peer)
    return False


def recv_obj_meta(obj_shape: Any = None, prev_rank: int | None = None) -> Any:
    """Receive the shapes of tensors from the previous stage, unless they are known."""
    if obj_shape is not None or gpc.is_first_rank(_PIPELINE):
        return obj_shape
    peer = gpc.get_prev_global_rank(_PIPELINE) if prev_rank is None else prev_rank
    return dist.receive_object(peer)


send_tensor_meta, recv_tensor_meta = send_obj_meta, recv_obj_meta
