"""Buffers of a model, such as the running statistics of BatchNorm, with logical ranks."""

from collections.abc import Sequence

import torch
import torch.distributed as c10d
from torch import Tensor

from stoker.core import dist


class StepBuffers:
    """The buffers of a model during a step: every logical rank starts from the same ones.

    After the step they are those of logical rank 0, as in DistributedDataParallel they are those
    of rank 0.
    """

    def __init__(self, buffers: Sequence[Tensor]) -> None:
        self._buffers = buffers
        self._before = [buffer.clone() for buffer in buffers]
        self._first: list[Tensor] = []

    def begin_rank(self) -> None:
        """Restore the buffers to the start of the step."""
        _copy(self._buffers, self._before)

    def end_rank(self, rank: int) -> None:
        """Keep the buffers of logical rank 0."""
        if rank == 0:
            self._first = [buffer.clone() for buffer in self._buffers]

    def end_step(self) -> None:
        """Set the buffers of all processes to those of logical rank 0."""
        _copy(self._buffers, self._first)
        send_from_first(self._buffers)


@torch.no_grad()
def send_from_first(tensors: Sequence[Tensor]) -> None:
    """Copy tensors from the first process to all others, in one message per kind."""
    kinds = dict.fromkeys((tensor.dtype, tensor.device) for tensor in tensors)
    groups = [[one for one in tensors if (one.dtype, one.device) == kind] for kind in kinds]

    def sent() -> list[Tensor]:
        flats = [torch.cat([one.detach().reshape(-1) for one in same]) for same in groups]
        for flat in flats:
            dist.wait_for(c10d.broadcast(flat, 0, async_op=True))
        if dist.members() is not None:
            dist.wait_for(c10d.barrier(async_op=True))
        return flats

    nothing: list[Tensor] = []
    for same, flat in zip(groups, dist.collective(sent, nothing), strict=False):
        parts = torch.split(flat, [tensor.numel() for tensor in same])
        _copy(same, [part.view_as(tensor) for part, tensor in zip(parts, same, strict=True)])


@torch.no_grad()
def _copy(tensors: Sequence[Tensor], values: Sequence[Tensor]) -> None:
    for tensor, value in zip(tensors, values, strict=False):
        tensor.copy_(value)
