"""`Layout`: how many ways a job is split."""

from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from math import prod

import torch
from torch import Tensor, nn

from stoker import dist
from stoker.tree import map_tensors
from stoker.types import Batch


@dataclass(frozen=True)
class Layout:
    """How many ways a job is split: whole copies, shards, tensor parts, pipeline stages.

    It is asked, never inspected: the engine hands it the model, batches and gradients and does
    not know which layout it has. In this version a job is one process, so every number is 1.
    """

    replicate: int = 1
    shard: int = 1
    tensor: int = 1
    pipeline: int = 1

    def __post_init__(self) -> None:
        sizes = asdict(self)
        needed, running = prod(sizes.values()), dist.world_size()
        if needed != 1:
            shown = " x ".join(f"{size} ({name})" for name, size in sizes.items() if size != 1)
            raise ValueError(
                f"layout {shown} needs {needed} processes, but the run has {running} and this "
                "version of Stoker trains in one process: leave the layout out"
            )

    def place(self, batch: Batch, device: torch.device) -> Batch:
        """The batch with its tensors on the device."""
        if hasattr(batch, "to") and not isinstance(batch, Tensor):
            return batch.to(device)
        return map_tensors(lambda tensor: tensor.to(device, non_blocking=True), batch)

    def gradient_sync(self, model: nn.Module, *, enabled: bool) -> AbstractContextManager[None]:
        """Whether the backward pass within it shares gradients; one process has none to share."""
        return nullcontext()

    def clip_grad_norm(
        self, parameters: Iterable[nn.Parameter], limit: float, norm_type: float
    ) -> Tensor:
        """Scale gradients down to a total norm of ``limit``; the norm they had."""
        return nn.utils.clip_grad_norm_(parameters, limit, norm_type)
