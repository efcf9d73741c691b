"""Synchronize gradients between the data ranks."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
import torch.distributed as c10d
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from stoker.core.tree import local_part

_BUCKET_BYTES = 25 * 2**20


class GradientSync:
    """Synchronizes nothing. Subclasses say how they differ."""

    def wrap(self, forward: Callable[..., Any]) -> Callable[..., Any]:
        """Return the forward pass, prepared for a synchronizing backward pass."""
        return forward

    def sync(self, *, enabled: bool) -> AbstractContextManager[None]:
        """Within this context, backward does or does not synchronize gradients."""
        return nullcontext()

    def after_backward(self) -> None:
        """Synchronize the gradients that the backward pass has not."""

    def reduce(self) -> None:
        """Synchronize the gradients of backward passes that were not to do so."""

    def sync_buffers(self) -> None:
        """Copy buffers from the first process."""


class AllReduceSync(GradientSync):
    """Averages gradients over a group of processes after the backward pass.

    If a parameter has a gradient in one process, the others contribute zeros.
    """

    def __init__(self, model: nn.Module, group: c10d.ProcessGroup) -> None:
        self._model = model
        self._group = group
        self._enabled = True
        first = c10d.get_process_group_ranks(group)[0]
        _broadcast([*model.parameters(), *model.buffers()], first, group)

    @contextmanager
    def sync(self, *, enabled: bool) -> Iterator[None]:
        """Within this context, backward is or is not followed by averaging."""
        before, self._enabled = self._enabled, enabled
        try:
            yield
        finally:
            self._enabled = before

    def after_backward(self) -> None:
        """Average all gradients."""
        if self._enabled:
            self.reduce()

    def reduce(self) -> None:
        """Average all gradients."""
        average_gradients([p for p in self._model.parameters() if p.requires_grad], self._group)

    def sync_buffers(self) -> None:
        """Copy buffers from the first process."""
        first = c10d.get_process_group_ranks(self._group)[0]
        _broadcast(self._model.buffers(), first, self._group)


class DDPSync(GradientSync):
    """torch's DistributedDataParallel: gradients are averaged during the backward pass.

    A step that calls submodules instead of the engine bypasses it; those gradients are averaged
    after the backward pass.
    """

    def __init__(self, model: nn.Module, group: c10d.ProcessGroup, *, unused: bool) -> None:
        self._model = model
        self._group = group
        self._unused = unused
        self._ddp: DistributedDataParallel
        self._enabled = True
        self._used_ddp = False
        self._checked = unused

    def wrap(self, forward: Callable[..., Any]) -> Callable[..., Any]:
        """Return the forward pass through DistributedDataParallel; without gradients, around it."""
        self._module = forward if isinstance(forward, nn.Module) else self._model
        self._ddp = self._make_ddp()

        def run(*args: Any, **kwargs: Any) -> Any:
            if not torch.is_grad_enabled():
                return forward(*args, **kwargs)
            if self._trained != [p.requires_grad for p in self._named.values()]:
                self._ddp = self._make_ddp()
            self._used_ddp = True
            try:
                return self._ddp(*args, **kwargs)
            except RuntimeError as error:
                self._name_unused(error)
                raise

        return run

    def _make_ddp(self) -> DistributedDataParallel:
        """Wrap the model as it is now: which parameters are trained may change between steps."""
        self._named = dict(self._model.named_parameters())
        self._trained = [p.requires_grad for p in self._named.values()]
        device = next(self._module.parameters()).device
        return DistributedDataParallel(
            self._module,
            device_ids=None if device.type == "cpu" else [device],
            process_group=self._group,
            find_unused_parameters=self._unused,
        )

    @contextmanager
    def sync(self, *, enabled: bool) -> Iterator[None]:
        """Within this context, DistributedDataParallel does or does not synchronize."""
        before, self._enabled = self._enabled, enabled
        try:
            with nullcontext() if enabled else self._ddp.no_sync():
                yield
        finally:
            self._enabled = before

    def after_backward(self) -> None:
        """Average the gradients that bypassed DistributedDataParallel."""
        if not self._enabled:
            return
        if not self._used_ddp:
            self.reduce()
        elif not self._checked:
            self._checked = True
            self._check_unused()
        self._used_ddp = False

    def reduce(self) -> None:
        """Average all gradients, without DistributedDataParallel."""
        average_gradients([p for p in self._model.parameters() if p.requires_grad], self._group)
        self._used_ddp = False

    def sync_buffers(self) -> None:
        """Copy buffers from the first process."""
        first = c10d.get_process_group_ranks(self._group)[0]
        _broadcast(self._model.buffers(), first, self._group)

    def _check_unused(self) -> None:
        unused = [
            name
            for name, parameter in self._model.named_parameters()
            if parameter.requires_grad and parameter.grad is None
        ]
        if unused:
            raise RuntimeError(_unused_message(unused))

    def _name_unused(self, error: RuntimeError) -> None:
        """Raise an error with the names of the parameters that torch reports by number."""
        _, found, rest = str(error).partition("did not receive grad for rank")
        if not found:
            return
        numbers = [int(item) for item in rest.partition(":")[2].split() if item.isdigit()]
        trained = [name for name, p in self._named.items() if p.requires_grad]
        names = [trained[number] for number in numbers if number < len(trained)]
        raise RuntimeError(_unused_message(names or ["unknown"])) from error


def average_gradients(parameters: Iterable[nn.Parameter], group: c10d.ProcessGroup) -> None:
    """Replace each gradient by its mean over the group, in large buckets."""
    parameters = list(parameters)
    has_grad = torch.tensor([p.grad is not None for p in parameters], dtype=torch.uint8)
    if parameters:
        has_grad = has_grad.to(parameters[0].device)
        c10d.all_reduce(has_grad, c10d.ReduceOp.MAX, group=group)
    gradients = []
    for parameter, on_any_rank in zip(parameters, has_grad.tolist(), strict=True):
        if on_any_rank:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            gradients.append(local_part(parameter.grad))
    for bucket in _buckets(gradients):
        flat = torch.cat([gradient.flatten() for gradient in bucket])
        c10d.all_reduce(flat, c10d.ReduceOp.AVG, group=group)
        parts = torch.split(flat, [gradient.numel() for gradient in bucket])
        for gradient, part in zip(bucket, parts, strict=True):
            gradient.copy_(part.view_as(gradient))


def _buckets(tensors: list[Tensor]) -> Iterator[list[Tensor]]:
    """Yield the tensors in buckets of one dtype and about 25 MB."""
    for dtype in sorted({tensor.dtype for tensor in tensors}, key=str):
        bucket: list[Tensor] = []
        size = 0
        for tensor in tensors:
            if tensor.dtype != dtype:
                continue
            bucket.append(tensor)
            size += tensor.numel() * tensor.element_size()
            if size >= _BUCKET_BYTES:
                yield bucket
                bucket, size = [], 0
        if bucket:
            yield bucket


@torch.no_grad()
def _broadcast(tensors: Iterable[Tensor], source: int, group: c10d.ProcessGroup) -> None:
    for tensor in tensors:
        c10d.broadcast(local_part(tensor.detach()), source, group=group)


def _unused_message(names: list[str]) -> str:
    shown = ", ".join(names[:5]) + (", …" if len(names) > 5 else "")
    return (
        f"{len(names)} parameters were not used in the step and have no gradient ({shown}), so "
        "that the copies of the model cannot synchronize them: freeze them "
        "(requires_grad=False), use them, or set Layout(unused=True)"
    )
