"""Batch normalization with the statistics of all data ranks.

torch's `SyncBatchNorm` needs an accelerator; this one runs wherever collectives do. The layers of
a model are changed in place: their parameters, buffers and names stay.
"""

from typing import Any

import torch
import torch.distributed as c10d
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm


class BatchStatistics:
    """The processes whose batches are normalized together.

    Args:
        group: these processes.
    """

    def __init__(self, group: c10d.ProcessGroup) -> None:
        self.group = group
        self.counted = True
        """Whether the current batch of this process counts; a padding batch does not."""

    def __deepcopy__(self, _: Any) -> "BatchStatistics":
        return self  # a copy of the model, such as an average, belongs to the same processes

    def __reduce__(self) -> Any:
        raise TypeError(
            "a model with synchronized batch norms cannot be pickled: save its state_dict()"
        )


class _Sum(torch.autograd.Function):
    """The sum over processes; its gradient is the sum of theirs."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, group: c10d.ProcessGroup) -> Tensor:
        ctx.group = group
        total = tensor.clone(memory_format=torch.contiguous_format)
        c10d.all_reduce(total, group=group)
        return total

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        total = grads[0].clone(memory_format=torch.contiguous_format)
        c10d.all_reduce(total, group=ctx.group)
        return total, None


class _SyncedBatchNorm(_BatchNorm):
    """A batch norm whose mean and variance are those of the batches of all processes."""

    statistics: BatchStatistics

    def forward(self, input: Tensor) -> Tensor:
        """Normalize; in evaluation like any batch norm."""
        self._check_input_dim(input)  # type: ignore[no-untyped-call]
        if not self.training:
            return super().forward(input)
        x = input.float() if input.dtype in (torch.float16, torch.bfloat16) else input
        mean, variance, count = self._measure(x)
        if self.track_running_stats and self.running_mean is not None:
            self._update_running(mean.detach(), variance.detach(), count)
        shape = [1, -1, *[1] * (x.dim() - 2)]
        y = (x - mean.view(shape)) * (variance.view(shape) + self.eps).rsqrt()
        if self.affine:
            y = y * self.weight.view(shape) + self.bias.view(shape)
        return y.to(input.dtype)

    def _measure(self, x: Tensor) -> tuple[Tensor, Tensor, float]:
        """Return mean and variance of each channel, and the number of values in one."""
        group, counted = self.statistics.group, self.statistics.counted
        dims = [0, *range(2, x.dim())]
        here = x.numel() / x.shape[1] if counted else 0.0
        sums = x.sum(dims) * float(counted)
        found = _sum(torch.cat([sums, sums.new_tensor([here])]), group)
        count = float(found[-1].detach())
        if count <= 1:
            raise ValueError(
                f"batch norm needs more than 1 value per channel over all processes, got {count:g}"
            )
        mean = found[:-1] / count
        deviations = x - mean.view([1, -1, *[1] * (x.dim() - 2)])
        variance = _sum(deviations.square().sum(dims) * float(counted), group) / count
        return mean, variance, count

    def _update_running(self, mean: Tensor, variance: Tensor, count: float) -> None:
        assert self.running_mean is not None
        assert self.running_var is not None
        assert self.num_batches_tracked is not None
        self.num_batches_tracked.add_(1)
        share = self.momentum
        if share is None:  # the average over all batches
            share = 1.0 / float(self.num_batches_tracked)
        with torch.no_grad():
            unbiased = variance * (count / (count - 1))
            self.running_mean.mul_(1 - share).add_(mean.to(self.running_mean.dtype), alpha=share)
            self.running_var.mul_(1 - share).add_(unbiased.to(self.running_var.dtype), alpha=share)


def _sum(tensor: Tensor, group: c10d.ProcessGroup) -> Tensor:
    total: Tensor = _Sum.apply(tensor, group)  # type: ignore[no-untyped-call]
    return total


class SyncedBatchNorm1d(_SyncedBatchNorm, nn.BatchNorm1d):
    """`nn.BatchNorm1d` over all processes."""


class SyncedBatchNorm2d(_SyncedBatchNorm, nn.BatchNorm2d):
    """`nn.BatchNorm2d` over all processes."""


class SyncedBatchNorm3d(_SyncedBatchNorm, nn.BatchNorm3d):
    """`nn.BatchNorm3d` over all processes."""


class SyncedBatchNorm(_SyncedBatchNorm, nn.SyncBatchNorm):
    """`nn.SyncBatchNorm` on any device."""


_SYNCED: dict[type[nn.Module], type[_SyncedBatchNorm]] = {
    nn.BatchNorm1d: SyncedBatchNorm1d,
    nn.BatchNorm2d: SyncedBatchNorm2d,
    nn.BatchNorm3d: SyncedBatchNorm3d,
    nn.SyncBatchNorm: SyncedBatchNorm,
}


def sync_batch_norms(model: nn.Module, group: c10d.ProcessGroup) -> BatchStatistics:
    """Let the batch norms of a model use the statistics of all processes of a group.

    Raises:
        ValueError: the model has none, or one with a forward pass of its own.
    """
    found = {name: one for name, one in model.named_modules() if isinstance(one, _BatchNorm)}
    if not found:
        raise ValueError("sync_batchnorm is set, but the model has no batch norm: leave it out")
    known = ", ".join(kind.__name__ for kind in _SYNCED)
    for name, one in found.items():
        if type(one) not in _SYNCED:
            raise ValueError(
                f"sync_batchnorm knows {known}, but '{name}' is a {type(one).__name__}, which may "
                "compute something else"
            )
    statistics = BatchStatistics(group)
    for one in found.values():
        one.__class__ = _SYNCED[type(one)]
        one.statistics = statistics  # type: ignore[assignment]
    return statistics
