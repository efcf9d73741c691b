"""`Schedule`: the order in which the micro-batches of one step run forward and backward."""

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import torch
from torch import Tensor

from stoker.core import dist
from stoker.core.types import Batch, Output
from stoker.engine.engine import Engine

Forward: TypeAlias = Callable[[Engine, Batch], Any]
Backward: TypeAlias = Callable[[Tensor], None]


class OnOutput(Protocol):
    """Receives what ``forward`` returned and returns the output whose loss is backpropagated."""

    def __call__(self, result: Any, size: float | None = None) -> Output:
        """Return the output; ``size`` is its weight if it has none of its own.

        Without a size, the weight is the number of samples in the corresponding batch.
        """
        ...


@dataclass(slots=True)  # not frozen: that would make seven more calls per step
class StepContext:
    """What a `Schedule` needs to run one step.

    Args:
        engine: runs the model.
        batches: the micro-batches of this process.
        sizes: the weight of each batch, such as its samples; 0 for a padding batch.
        expected_size: the sum of the sizes on all data ranks, divided by their number.
        forward: computes model and loss for a batch.
        backward: adds the gradients of a loss to those of the step.
        on_output: called with every output, in the order of the micro-batches.
        weigh: returns the weight of a part of a batch; None if it follows from its samples.
        logical: what logical ranks need to know of the step; None in a layout without them.
        restart: drops the outputs of the step so far, before it runs again.
    """

    engine: Engine
    batches: Sequence[Batch]
    sizes: Sequence[float]
    expected_size: float
    forward: Forward
    backward: Backward
    on_output: OnOutput
    weigh: Callable[[Batch], float | None] | None = None
    logical: Any = None
    restart: Callable[[], None] | None = None


class Schedule(Protocol):
    """Runs the micro-batches of one step. In a trainer's run nothing else calls backward."""

    def run(self, context: StepContext) -> None:
        """Leave the gradients of the step in the parameters, synchronized between processes."""
        ...

    def forward_only(self, engine: Engine, batch: Batch, forward: Forward) -> Any:
        """Return ``forward(engine, batch)`` without gradients; None on other pipeline stages."""
        ...


class PlainSchedule:
    """Runs one micro-batch after another; gradients are synchronized with the last one.

    Each micro-batch is weighted by its samples (or tokens, if its output has a weight), so that
    the gradients are those of one large batch: with ``w`` of the ``W`` samples in the step, its
    loss is divided by ``W / w``. The loss of a criterion that sums is not divided. Processes
    average their gradients, so ``W`` is the mean over processes, and sums are multiplied by the
    number of data ranks.
    """

    def run(self, context: StepContext) -> None:
        """Run forward and backward, batch by batch."""
        engine, batches = context.engine, context.batches
        ranks = engine.parallel_model.data_ranks
        if ranks == 1 and len(batches) == 1:
            batch = engine.place(batches[0]) if engine.moves_batches else batches[0]
            output = context.on_output(context.forward(engine, batch), context.sizes[0])
            context.backward(output.loss)  # type: ignore[arg-type]
            return
        expected, is_sum = context.expected_size, engine.loss_is_sum
        total, weighted = 0.0, False
        for index, (batch, size) in enumerate(zip(batches, context.sizes, strict=True)):
            last = index == len(batches) - 1
            engine.parallel_model.begin_batch(size)
            with nullcontext() if last else engine.parallel_model.sync(enabled=False):
                result = context.forward(engine, engine.place(batch))
                weighted = weighted or has_weight(result)
                output = context.on_output(result, size)
                weight = size if output.weight is None else output.weight
                total += weight
                assert output.loss is not None
                if weight:
                    divisor = 1 / ranks if is_sum else expected / weight
                    context.backward(output.loss if divisor == 1 else output.loss / divisor)
                elif ranks > 1:  # other ranks wait for the collectives of this backward pass
                    context.backward(output.loss / math.inf)
        if weighted and ranks > 1:
            total = dist.all_reduce_sum(total)[0] / dist.world_size()
        if total != expected and not is_sum and (weighted or ranks == 1):
            scale_gradients(engine, expected / total if total else 0.0)

    def forward_only(self, engine: Engine, batch: Batch, forward: Forward) -> Any:
        """Return ``forward(engine, batch)``."""
        return forward(engine, engine.place(batch) if engine.moves_batches else batch)


def has_weight(result: Any) -> bool:
    """Return whether what a step returned has a weight of its own."""
    if isinstance(result, Output):
        return result.weight is not None
    return isinstance(result, Mapping) and result.get("weight") is not None


def mean_loss(outputs: Sequence[Output], *, sums: bool) -> Tensor | None:
    """Return the detached mean loss over the samples of all outputs; None without outputs.

    If the losses are ``sums`` over samples, return their sum.
    """
    pairs = [(o.loss.detach(), o.weight) for o in outputs if o.loss is not None and o.weight]
    if len(pairs) < 2 or sums:
        return torch.stack([loss for loss, _ in pairs]).sum() if pairs else None
    total = sum(weight for _, weight in pairs)
    return torch.stack([loss * (weight / total) for loss, weight in pairs]).sum()


def scale_gradients(engine: Engine, factor: float) -> None:
    """Multiply all gradients, to correct for weights that only the forward pass knew."""
    for optimizer in engine.optimizers.values():
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    parameter.grad.mul_(factor)
