"""`Schedule`: the order in which the micro-batches of one step go forward and back."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeAlias

from torch import Tensor

from stoker.engine.engine import Engine
from stoker.types import Batch, Output

Forward: TypeAlias = Callable[[Engine, Batch], Any]
Backward: TypeAlias = Callable[[Tensor], None]
Took: TypeAlias = Callable[[Any], Output]


class Schedule(Protocol):
    """Runs the micro-batches of one step. Nobody else calls backward in a trainer's run."""

    def run(
        self,
        engine: Engine,
        batches: Sequence[Batch],
        sizes: Sequence[int],
        forward: Forward,
        backward: Backward,
        took: Took,
    ) -> None:
        """Leave the gradients of the whole step in the parameters.

        ``sizes`` are the samples in each batch. What ``forward`` returns goes through ``took``,
        which tells the hooks and gives the output whose loss goes back.
        """
        ...


class PlainSchedule:
    """One micro-batch after another, forward and back; gradients are shared with the last.

    Each micro-batch counts by what it holds, so that the gradients are those of one big batch:
    with ``w`` samples (or tokens, where the output says so) of ``W`` in the step, the loss of a
    micro-batch is divided by ``W / w``. A criterion that sums is left as it is.
    """

    def run(
        self,
        engine: Engine,
        batches: Sequence[Batch],
        sizes: Sequence[int],
        forward: Forward,
        backward: Backward,
        took: Took,
    ) -> None:
        """Forward and back, batch by batch."""
        if len(batches) == 1:
            batch = engine.place(batches[0]) if engine.moves else batches[0]
            backward(took(forward(engine, batch)).loss)  # type: ignore[arg-type]
            return
        sums = getattr(engine.given_criterion, "reduction", None) == "sum"
        expected = float(sum(sizes))
        found = 0.0
        for index, (batch, size) in enumerate(zip(batches, sizes, strict=True)):
            is_last = index == len(batches) - 1
            with engine.layout.gradient_sync(engine.model, enabled=is_last):
                output = took(forward(engine, engine.place(batch)))
                weight = size if output.weight is None else output.weight
                found += weight
                assert output.loss is not None
                if weight:
                    share = 1.0 if sums else expected / weight
                    backward(output.loss / share)
        if found != expected and not sums:
            _scale_gradients(engine, expected / found if found else 0.0)


def _scale_gradients(engine: Engine, factor: float) -> None:
    """Correct for weights that only the forward pass knew, such as the tokens of a batch."""
    for optimizer in engine.optimizers.values():
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    parameter.grad.mul_(factor)
