"""Send tensors between neighbouring stages of a pipeline, for scripts with their own schedule.

A stage without that neighbour sends nothing and receives None.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from stoker.core import dist
from stoker.dialects.colossalai.context import global_context as gpc
from stoker.dialects.colossalai.ranks import ParallelMode
from stoker.engine.checks import resolve_device

_PIPELINE = ParallelMode.PIPELINE


def _function(*, to_next: bool, sends: bool = False, receives: bool = False) -> Callable[..., Any]:
    """Return a function that takes a tensor to send, and the shape of one to receive."""
    is_edge = gpc.is_last_rank if to_next else gpc.is_first_rank
    find = gpc.get_next_global_rank if to_next else gpc.get_prev_global_rank

    def exchange(*given: Any, rank: int | None = None, dtype: torch.dtype = torch.float) -> Any:
        if len(given) != sends + receives:
            raise TypeError(f"expected {sends + receives} arguments, got {len(given)}")
        if is_edge(_PIPELINE):
            return None
        received = None
        if receives:
            received = torch.empty(tuple(given[-1]), dtype=dtype, device=resolve_device("auto"))
        peer = find(_PIPELINE) if rank is None else rank
        dist.exchange(peer, given[0] if sends else None, received)
        return received if received is None else received.requires_grad_(dtype.is_floating_point)

    return exchange


send_forward = _function(to_next=True, sends=True)
send_backward = _function(to_next=False, sends=True)
recv_forward = _function(to_next=False, receives=True)
recv_backward = _function(to_next=True, receives=True)
send_forward_recv_backward = _function(to_next=True, sends=True, receives=True)
send_backward_recv_forward = _function(to_next=False, sends=True, receives=True)


def send_obj_meta(obj: Tensor, need_meta: bool = True) -> bool:
    """Send the shape of a tensor to the next stage; return False, for the next call."""
    if need_meta:
        send_forward(torch.tensor([obj.dim()]))
        send_forward(torch.tensor(obj.shape))
    return False


def recv_obj_meta(obj_shape: Any = None) -> Any:
    """Receive the shape of a tensor from the previous stage, unless it is known."""
    if obj_shape is not None or gpc.is_first_rank(_PIPELINE):
        return obj_shape
    count = recv_forward((1,), dtype=torch.int64)
    return torch.Size(recv_forward((int(count),), dtype=torch.int64).tolist())
