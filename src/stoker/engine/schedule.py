"""`Schedule`: the order in which the micro-batches of one step go forward and back."""

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any, Protocol, TypeAlias

import torch
from torch import Tensor

from stoker.core import dist
from stoker.core.types import Batch, Output
from stoker.engine.engine import Engine

Forward: TypeAlias = Callable[[Engine, Batch], Any]
Backward: TypeAlias = Callable[[Tensor], None]


class OnOutput(Protocol):
    """Tells the hooks what forward returned, and gives the output whose loss goes back."""

    def __call__(self, result: Any, size: int | None = None) -> Output:
        """The output, which weighs ``size`` samples where it does not say so itself.

        Without a size it weighs those of the batch in turn.
        """
        ...


class Schedule(Protocol):
    """Runs the micro-batches of one step. Nobody else calls backward in a trainer's run."""

    def run(
        self,
        engine: Engine,
        batches: Sequence[Batch],
        sizes: Sequence[int],
        expected: float,
        forward: Forward,
        backward: Backward,
        on_output: OnOutput,
    ) -> None:
        """Leave the gradients of the whole step in the parameters, shared between processes.

        Args:
            engine: what runs forward and back.
            batches: those of this process.
            sizes: the samples in each batch; 0 for one that only keeps the others company.
            expected: the samples of the step in a process that has its even share of them.
            forward: a batch through model and loss.
            backward: the gradients of a loss, added to those there are.
            on_output: what is done with every output, in the order of the micro-batches.
        """
        ...

    def forward_only(self, engine: Engine, batch: Batch, forward: Forward) -> Any:
        """What ``forward`` makes of a batch without gradients; None where others have it."""
        ...


class PlainSchedule:
    """One micro-batch after another, forward and back; gradients are shared with the last.

    Each micro-batch counts by what it holds, so that the gradients are those of one big batch:
    with ``w`` samples (or tokens, where the output says so) of ``W`` in the step, the loss of a
    micro-batch is divided by ``W / w``. A criterion that sums is not. Processes average their
    gradients, so ``W`` is an even share of the step and sums are taken times the processes.
    """

    def run(
        self,
        engine: Engine,
        batches: Sequence[Batch],
        sizes: Sequence[int],
        expected: float,
        forward: Forward,
        backward: Backward,
        on_output: OnOutput,
    ) -> None:
        """Forward and back, batch by batch."""
        parts = engine.parallel_model.parts
        if parts == 1 and len(batches) == 1:
            batch = engine.place(batches[0]) if engine.moves else batches[0]
            backward(on_output(forward(engine, batch)).loss)  # type: ignore[arg-type]
            return
        sums = engine.sums
        found, told = 0.0, False
        for index, (batch, size) in enumerate(zip(batches, sizes, strict=True)):
            last = index == len(batches) - 1
            with nullcontext() if last else engine.parallel_model.sync(enabled=False):
                result = forward(engine, engine.place(batch))
                told = told or has_weight(result)
                output = on_output(result)
                weight = size if output.weight is None else output.weight
                found += weight
                assert output.loss is not None
                if weight:
                    share = 1 / parts if sums else expected / weight
                    backward(output.loss if share == 1 else output.loss / share)
                elif parts > 1:  # the others wait for this one
                    backward(output.loss / math.inf)
        if told and parts > 1:
            found = dist.all_reduce_sum(found)[0] / dist.world_size()
        if found != expected and not sums and (told or parts == 1):
            scale_gradients(engine, expected / found if found else 0.0)

    def forward_only(self, engine: Engine, batch: Batch, forward: Forward) -> Any:
        """What ``forward`` makes of the batch."""
        return forward(engine, engine.place(batch) if engine.moves else batch)


def has_weight(result: Any) -> bool:
    """Whether what a step returned tells its own weight."""
    if isinstance(result, Output):
        return result.weight is not None
    return isinstance(result, Mapping) and result.get("weight") is not None


def mean_loss(outputs: Sequence[Output], *, sums: bool) -> Tensor | None:
    """The mean loss over the samples of all outputs, detached; None where there are none.

    Of losses that are ``sums`` it is their sum.
    """
    pairs = [(o.loss.detach(), o.weight) for o in outputs if o.loss is not None and o.weight]
    if len(pairs) < 2 or sums:
        return torch.stack([loss for loss, _ in pairs]).sum() if pairs else None
    weights = sum(weight for _, weight in pairs)
    return torch.stack([loss * (weight / weights) for loss, weight in pairs]).sum()


def scale_gradients(engine: Engine, factor: float) -> None:
    """Correct for weights that only the forward pass knew, such as the tokens of a batch."""
    for optimizer in engine.optimizers.values():
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    parameter.grad.mul_(factor)
