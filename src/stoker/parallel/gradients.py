"""How the gradients of several copies become those of one batch."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
import torch.distributed as c10d
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from stoker.core.tree import local_part

_BUCKET = 25 * 2**20


class Gradients:
    """A model that shares its gradients with nobody; the others say how they differ."""

    def wrap(self, forward: Callable[..., Any]) -> Callable[..., Any]:
        """The forward pass, ready for a backward pass that shares."""
        return forward

    def sync(self, *, enabled: bool) -> AbstractContextManager[None]:
        """Whether the backward pass within it shares gradients."""
        return nullcontext()

    def after_backward(self) -> None:
        """A backward pass is over."""

    def before_eval(self) -> None:
        """The model is about to be judged: buffers are those of the first process."""


class Averaged(Gradients):
    """Gradients are averaged over a group of processes when the backward pass is over.

    A parameter that has a gradient in one process has one in all: elsewhere it was zero.
    """

    def __init__(self, model: nn.Module, group: c10d.ProcessGroup) -> None:
        self._model = model
        self._group = group
        self._enabled = True
        first = c10d.get_process_group_ranks(group)[0]
        _broadcast([*model.parameters(), *model.buffers()], first, group)

    @contextmanager
    def sync(self, *, enabled: bool) -> Iterator[None]:
        """Within it, a backward pass is followed by averaging, or not."""
        before, self._enabled = self._enabled, enabled
        try:
            yield
        finally:
            self._enabled = before

    def after_backward(self) -> None:
        """Average what there is."""
        if self._enabled:
            average([p for p in self._model.parameters() if p.requires_grad], self._group)

    def before_eval(self) -> None:
        """Take the buffers of the first process."""
        first = c10d.get_process_group_ranks(self._group)[0]
        _broadcast(self._model.buffers(), first, self._group)


class Copies(Gradients):
    """torch's DistributedDataParallel: gradients are shared while the backward pass goes on.

    A step that calls parts of the model and not the engine goes past it; such gradients are
    averaged when the backward pass is over.
    """

    def __init__(self, model: nn.Module, group: c10d.ProcessGroup, *, unused: bool) -> None:
        self._model = model
        self._group = group
        self._unused = unused
        self._ddp: DistributedDataParallel
        self._enabled = True
        self._through = False
        self._checked = unused

    def wrap(self, forward: Callable[..., Any]) -> Callable[..., Any]:
        """The forward pass through DistributedDataParallel; past it where nothing is trained."""
        self._run = forward if isinstance(forward, nn.Module) else self._model
        self._ddp = self._wrapped()

        def run(*args: Any, **kwargs: Any) -> Any:
            if not torch.is_grad_enabled():
                return forward(*args, **kwargs)
            if self._trained != [p.requires_grad for p in self._named.values()]:
                self._ddp = self._wrapped()
            self._through = True
            try:
                return self._ddp(*args, **kwargs)
            except RuntimeError as error:
                self._name_unused(error)
                raise

        return run

    def _wrapped(self) -> DistributedDataParallel:
        """The model as it is now: which parameters are trained may change between steps."""
        self._named = dict(self._model.named_parameters())
        self._trained = [p.requires_grad for p in self._named.values()]
        device = next(self._run.parameters()).device
        return DistributedDataParallel(
            self._run,
            device_ids=None if device.type == "cpu" else [device],
            process_group=self._group,
            find_unused_parameters=self._unused,
        )

    @contextmanager
    def sync(self, *, enabled: bool) -> Iterator[None]:
        """Within it, DistributedDataParallel shares, or not."""
        before, self._enabled = self._enabled, enabled
        try:
            with nullcontext() if enabled else self._ddp.no_sync():
                yield
        finally:
            self._enabled = before

    def after_backward(self) -> None:
        """Average what DistributedDataParallel did not see."""
        if not self._enabled:
            return
        if not self._through:
            average([p for p in self._model.parameters() if p.requires_grad], self._group)
        elif not self._checked:
            self._checked = True
            self._check_unused()
        self._through = False

    def before_eval(self) -> None:
        """Take the buffers of the first process."""
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
        """Say which parameters torch means, which names them by number."""
        _, found, rest = str(error).partition("did not receive grad for rank")
        if not found:
            return
        numbers = [int(word) for word in rest.partition(":")[2].split() if word.isdigit()]
        trained = [name for name, p in self._named.items() if p.requires_grad]
        names = [trained[number] for number in numbers if number < len(trained)]
        raise RuntimeError(_unused_message(names or ["unknown"])) from error


def average(parameters: Iterable[nn.Parameter], group: c10d.ProcessGroup) -> None:
    """Replace each gradient by its mean over the group, a few large exchanges at a time."""
    parameters = list(parameters)
    has = torch.tensor([p.grad is not None for p in parameters], dtype=torch.uint8)
    if parameters:
        has = has.to(parameters[0].device)
        c10d.all_reduce(has, c10d.ReduceOp.MAX, group=group)
    gradients = []
    for parameter, somewhere in zip(parameters, has.tolist(), strict=True):
        if somewhere:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            gradients.append(local_part(parameter.grad))
    for bucket in _buckets(gradients):
        whole = torch.cat([gradient.flatten() for gradient in bucket])
        c10d.all_reduce(whole, c10d.ReduceOp.AVG, group=group)
        parts = torch.split(whole, [gradient.numel() for gradient in bucket])
        for gradient, part in zip(bucket, parts, strict=True):
            gradient.copy_(part.view_as(gradient))


def _buckets(tensors: list[Tensor]) -> Iterator[list[Tensor]]:
    """The tensors by dtype, in lists of some megabytes."""
    for dtype in sorted({tensor.dtype for tensor in tensors}, key=str):
        bucket: list[Tensor] = []
        size = 0
        for tensor in tensors:
            if tensor.dtype != dtype:
                continue
            bucket.append(tensor)
            size += tensor.numel() * tensor.element_size()
            if size >= _BUCKET:
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
        f"{len(names)} parameters took no part in the step and have no gradient ({shown}), so that "
        "the copies of the model cannot share them: freeze them (requires_grad=False), use them, "
        "or give Layout(unused=True)"
    )
