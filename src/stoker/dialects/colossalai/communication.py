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


def _part(name: str, doc: str, taken: str, result: int | None = None) -> Any:
    """Return a function with some of the parameters of the complete one, and one of its results."""
    names = [*taken.split(), "scatter_gather_tensors"]
    own = Signature([_COMPLETE[parameter] for parameter in names])

    def transfer(*args: Any, **options: Any) -> Any:
        given = own.bind(*args, **options).arguments
        found = send_forward_backward_recv_forward_backward(**{**_NOTHING, **given})
        return None if result is None else found[result]

    transfer.__name__ = transfer.__qualname__ = name
    transfer.__doc__, transfer.__dict__["__signature__"] = doc, own
    return transfer


_PREV, _NEXT = 0, 1
recv_forward = _part(
    "recv_forward",
    "Return the outputs of the previous stage.",
    "input_tensor_shape prev_rank dtype",
    _PREV,
)
recv_backward = _part(
    "recv_backward",
    "Return the gradients of the next stage.",
    "output_grad_shape next_rank dtype",
    _NEXT,
)
send_forward = _part("send_forward", "Send outputs to the next stage.", "output_tensor next_rank")
send_backward = _part(
    "send_backward", "Send gradients to the previous stage.", "input_tensor_grad prev_rank"
)
send_forward_recv_backward = _part(
    "send_forward_recv_backward",
    "Send outputs to the next stage and return its gradients.",
    "output_tensor output_grad_shape recv_next next_rank dtype",
    _NEXT,
)
send_backward_recv_forward = _part(
    "send_backward_recv_forward",
    "Send gradients to the previous stage and return its outputs.",
    "input_tensor_grad input_tensor_shape recv_prev prev_rank dtype",
    _PREV,
)
send_forward_recv_forward = _part(
    "send_forward_recv_forward",
    "Send outputs to the next stage and return those of the previous.",
    "output_tensor input_tensor_shape recv_prev prev_rank next_rank dtype",
    _PREV,
)
send_backward_recv_backward = _part(
    "send_backward_recv_backward",
    "Send gradients to the previous stage and return those of the next.",
    "input_tensor_grad output_grad_shape recv_next prev_rank next_rank dtype",
    _NEXT,
)


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
