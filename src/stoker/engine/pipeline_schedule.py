"""`PipelineSchedule`: run micro-batches through the stages of a pipeline."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor

from stoker.core import dist
from stoker.core.log import get_logger
from stoker.core.tree import batch_size, concatenate, describe, split_batch
from stoker.core.types import Batch
from stoker.engine.engine import Engine
from stoker.engine.logical_schedule import LogicalSchedule
from stoker.engine.retry_schedule import RetrySchedule
from stoker.engine.schedule import (
    Forward,
    Schedule,
    StepContext,
    has_weight,
    scale_gradients,
)
from stoker.parallel import Layout, Stages
from stoker.parallel.pipeline.forward_passes import Shapes, forward_only, infer_shapes
from stoker.parallel.pipeline.stage_plan import (
    ScheduleKind,
    check_kind,
    microbatch_error,
    microbatches_for,
)
from stoker.parallel.pipeline.stages import Call
from stoker.parallel.rank_draws import own_draws

_log = get_logger()

_MAX_DRIVERS = 4


class _MicroBatch(NamedTuple):
    """A micro-batch and its weight, such as its samples."""

    batch: Batch
    size: float


class PipelineSchedule:
    """Runs the micro-batches of a step through pipeline stages, by one of torch's schedules.

    Only the process with the last stage has outputs and a loss; the others run the same step
    without them. You do not change the step for a pipeline. On the last stage its `forward` is
    called for each micro-batch, and ``engine(…)`` returns the output of the stages. On the first
    stage, or on all stages of a model that is cut by its blocks, it is called up to ``engine(…)``,
    to get the inputs. Therefore a step calls the model once, and does not draw random numbers
    before it. The loss of a micro-batch is weighted by its samples (or tokens), as in every
    schedule.

    The batches of an accumulated step form one long sequence of micro-batches, which fills and
    drains the pipeline once. "gpipe", which holds the activations of the entire sequence, runs
    them batch by batch.

    Args:
        kind: "gpipe", all forward passes, then all backward passes. "1f1b", forward and backward
            passes in turn. "interleaved", the same with several stages per process.
            "zero-bubble", with one stage or several; the gradients of weights, which no other
            stage waits for, fill the gaps.
        microbatches: the number of micro-batches per batch; the number of stages if None. A batch
            that does not divide evenly, such as the last of an epoch, is cut into fewer; if they
            are too few for the schedule, they run as in "gpipe".
        virtual: the number of stages per process; that of the layout if None.
    """

    def __init__(
        self,
        kind: ScheduleKind = "1f1b",
        microbatches: int | None = None,
        virtual: int | None = None,
    ) -> None:
        check_kind(kind)
        for name, number in (("microbatches", microbatches), ("virtual", virtual)):
            if number is not None and number < 1:
                raise ValueError(f"{name} must be at least 1, got {number!r}")
        self.kind, self.microbatches, self.virtual = kind, microbatches, virtual
        self._stages: Stages | None = None
        self._count = 0
        self._shapes: dict[Any, tuple[Shapes, list[str]]] = {}
        self._drivers: dict[Any, Any] = {}
        self._has_weights: bool | None = None

    def microbatches_for(self, processes: int, virtual: int) -> int:
        """Return the number of micro-batches, checked against the schedule and the stages.

        Args:
            processes: the number of processes in the pipeline.
            virtual: the number of stages per process.
        """
        if self.virtual not in (None, virtual):
            raise ValueError(
                f"the schedule has virtual={self.virtual}, but the layout has virtual={virtual}"
            )
        return microbatches_for(self.kind, self.microbatches, processes, virtual)

    def run(self, context: StepContext) -> None:
        """Run all micro-batches of the step forward and backward through the stages."""
        engine = context.engine
        if context.backward != engine.backward:
            raise ValueError(
                "the step overrides backward, but in a pipeline each stage runs its own backward "
                "pass: move the change to forward (the loss) or update (the gradients)"
            )
        stages = self._stages_of(engine)
        losses = _Losses(context)
        with own_draws(stages.rank, engine.device):  # dropout masks of stages would repeat
            for sequence in self._sequences(context, stages):
                self._drive(context, stages, sequence, losses)
        stages.share_tied_gradients()
        engine.parallel_model.after_backward()
        self._correct_weights(engine, stages, losses)

    def forward_only(self, engine: Engine, batch: Batch, forward: Forward) -> Any:
        """Return ``forward(engine, batch)`` on the last stage; None on the others."""
        stages = self._stages_of(engine)
        sizes = engine.parallel_model.gather_lockstep(batch_size(batch))
        batch = _place(engine, stages, batch)
        count = _largest_divisor(self._count, [int(row[0]) for row in sizes])
        calls, shapes = self._prepare_calls(engine, stages, forward, split_batch(batch, count))
        is_one = count > 1 and not _are_samples(shapes, batch_size(batch) // count)
        if any(row[0] for row in engine.parallel_model.gather_lockstep(is_one)):
            count = 1
            calls, shapes = self._prepare_calls(engine, stages, forward, [batch])
        outputs = forward_only(stages, shapes, calls, count, engine.device)
        if not stages.has_last:
            return None
        with _replace_model(engine, _answer_once(concatenate(outputs))):
            return forward(engine, batch)

    def _prepare_calls(
        self, engine: Engine, stages: Stages, forward: Forward, parts: Sequence[Batch]
    ) -> tuple[list[Call], Shapes]:
        """Return the calls of the model for micro-batches of one shape, and what stages return."""
        calls = [capture_call(engine, forward, p) for p in parts] if stages.needs_calls else []
        return calls, self._infer_shapes(engine, stages, forward, describe(parts[0]), calls)

    def _stages_of(self, engine: Engine) -> Stages:
        """Return the stages of the engine, checked to fit this schedule."""
        stages = engine.stages
        if stages is None:
            raise ValueError(
                "PipelineSchedule needs a model that is split into stages, but the engine's layout "
                "has none: use Layout(pipeline=…)"
            )
        if self.kind == "zero-bubble" and engine.compile_mode:
            raise ValueError(
                "zero-bubble splits the backward pass, which a compiled model does not allow: "
                "leave out compile, or use 'interleaved' or '1f1b'"
            )
        if stages is not self._stages:
            self._count = self.microbatches_for(stages.processes, stages.virtual)
            for stage in stages.local.values():
                stage.prepared = engine._prepare(stage.run)
            self._stages, self._has_weights = stages, None
            self._shapes.clear()
            self._drivers.clear()
        return stages

    def _sequences(self, context: StepContext, stages: Stages) -> list[list[_MicroBatch]]:
        """Return the micro-batches of a step, in sequences of equal shape that run together."""
        engine, batches = context.engine, context.batches
        held, shapes = [batch_size(batch) for batch in batches], [describe(b) for b in batches]
        apart = [self.kind == "gpipe" or a != b for a, b in pairwise(["", *shapes])]
        everywhere = engine.parallel_model.gather_lockstep(*held, *apart)
        sequences: list[list[_MicroBatch]] = []
        for index, (batch, size) in enumerate(zip(batches, context.sizes, strict=True)):
            count = _largest_divisor(self._count, [int(row[index]) for row in everywhere])
            if not index:
                self._warn_indivisible(held[index], count)
            if any(row[len(batches) + index] for row in everywhere):
                sequences.append([])
            parts = split_batch(_place(engine, stages, batch), count)
            for part in parts:
                weight = context.weigh(part) if context.weigh is not None and size else None
                share = size // count if weight is None else weight
                sequences[-1].append(_MicroBatch(part, share))
        return sequences

    def _warn_indivisible(self, held: int, count: int) -> None:
        """Warn if the first batch already cannot be cut as requested."""
        if not self._shapes and count != self._count:
            _log.warning(
                f"a batch of {held} samples does not divide into {self._count} micro-batches, and "
                f"is cut into {count}: choose a batch size that is a multiple of {self._count}"
            )

    def _drive(
        self,
        context: StepContext,
        stages: Stages,
        micro_batches: Sequence[_MicroBatch],
        losses: "_Losses",
    ) -> None:
        """Run a sequence of micro-batches of one shape forward and backward."""
        from stoker.parallel.pipeline.driver import PipelineDriver

        engine, forward = context.engine, context.forward
        count = len(micro_batches)
        batches = [micro.batch for micro in micro_batches]
        calls, shapes = self._prepare_calls(engine, stages, forward, batches)
        fits = microbatch_error(self.kind, count, stages.processes, stages.virtual) is None
        kind: ScheduleKind = self.kind if fits else "gpipe"
        key = (id(shapes), count)  # the driver holds the shapes
        if key not in self._drivers:
            if len(self._drivers) == _MAX_DRIVERS:  # each has its own receive buffers
                del self._drivers[next(iter(self._drivers))]
            self._drivers[key] = PipelineDriver(kind, stages, shapes, count, engine.device)
        self._drivers[key].run(
            calls, lambda output, number: losses.compute(output, micro_batches[number])
        )

    def _infer_shapes(
        self, engine: Engine, stages: Stages, forward: Forward, shape: str, calls: Sequence[Call]
    ) -> Shapes:
        """Return what the stages return for a micro-batch of this shape, from a cache."""
        key = (getattr(forward, "__qualname__", ""), engine.training, shape)
        called = [describe(call) for call in calls]
        if any(row[0] for row in engine.parallel_model.gather_lockstep(key not in self._shapes)):
            self._shapes[key] = (infer_shapes(stages, calls, engine.device), called[:1])
        shapes, before = self._shapes[key]
        for now in called:
            if [now] != before:
                raise ValueError(
                    f"the step called the model with {now}, and with {before[0]} for another "
                    f"micro-batch of the same shape, {shape}: in a pipeline the shapes of the "
                    "model's inputs must follow from the shapes of the batch"
                )
        return shapes

    def _correct_weights(self, engine: Engine, stages: Stages, losses: "_Losses") -> None:
        """Correct for weights that only the last stage knew, such as the tokens of a batch.

        The processes agree in the first step on whether outputs have weights, so that steps
        without them need no communication.
        """
        if self._has_weights is None:
            self._has_weights = dist.any_rank(losses.weighted)
        elif stages.has_last and losses.weighted != self._has_weights:
            raise ValueError(
                "the step set the weight of some outputs only: in a pipeline, set Output(weight=…) "
                "for every output, or for none"
            )
        if self._has_weights and not losses.is_sum:
            total = dist.all_reduce_sum(losses.total)[0] * stages.processes / dist.world_size()
            scale_gradients(engine, losses.expected / total if total else 0.0)


def _largest_divisor(most: int, sizes: Sequence[int]) -> int:
    """Return the largest number up to ``most`` that divides all sizes."""
    return next(n for n in range(most, 0, -1) if n == 1 or not any(size % n for size in sizes))


class _Losses:
    """Computes the weighted losses of micro-batches on the last stage.

    Attributes:
        total: the sum of the weights so far.
        weighted: whether the step has set weights itself.
        is_sum: whether losses are sums over samples instead of means.
    """

    def __init__(self, context: StepContext) -> None:
        self._context = context
        self.expected, self.total, self.weighted = context.expected_size, 0.0, False
        self.is_sum = context.engine.loss_is_sum

    def compute(self, output: Any, micro: _MicroBatch) -> Tensor:
        """Return the loss to backpropagate."""
        engine = self._context.engine
        with _replace_model(engine, _answer_once(output)):
            result = self._context.forward(engine, micro.batch)
        self.weighted |= has_weight(result)
        found = self._context.on_output(result, micro.size)
        if not micro.size:  # a padding batch
            found.weight = 0.0
        assert found.loss is not None
        assert found.weight is not None
        self.total += found.weight
        factor = found.weight / self.expected
        if self.is_sum:
            factor = engine.parallel_model.data_ranks if micro.size else 0.0
        return found.loss * factor


class _ModelCalled(BaseException):
    """Leaves a step at its call of the model."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.call = (args, kwargs)


def capture_call(engine: Engine, forward: Forward, batch: Batch) -> Call:
    """Return the arguments with which ``forward`` calls the model for this batch."""

    def leave(*args: Any, **kwargs: Any) -> Any:
        raise _ModelCalled(*args, **kwargs)

    before = torch.get_rng_state()
    with _replace_model(engine, leave):
        try:
            forward(engine, batch)
        except _ModelCalled as found:
            if not torch.equal(before, torch.get_rng_state()):
                raise ValueError(
                    "the step drew random numbers before it called the model: in a pipeline the "
                    "first and the last stage would draw different ones; draw them in the loader"
                ) from None
            return found.call
    raise ValueError(
        "the step did not call engine(…): a pipeline runs the model once for each batch"
    )


def _place(engine: Engine, stages: Stages, batch: Batch) -> Batch:
    """Move the batch to the device if a stage is here to read it."""
    return engine.place(batch) if stages.needs_calls or stages.has_last else batch


def _are_samples(shapes: Shapes, size: int) -> bool:
    """Return whether all outputs of the model have one row for each sample, to be concatenated.

    A loss has not: that of a batch is not the mean of those of its parts.
    """
    return all(len(shape) > 0 and shape[0] == size for shape, _ in shapes.outputs[-1])


def _answer_once(output: Any) -> Callable[..., Any]:
    """Return a model that answers one call with the output of the stages."""
    remaining = [output]

    def answer(*args: Any, **kwargs: Any) -> Any:
        if not remaining:
            raise ValueError(
                "the step called the model twice for one batch: a pipeline runs it once; "
                "concatenate the inputs along the batch dimension"
            )
        return remaining.pop()

    return answer


@contextmanager
def _replace_model(engine: Engine, model: Callable[..., Any]) -> Iterator[None]:
    """Within this context, calls of the engine go to ``model``."""
    before, engine._forward = engine._forward, model
    try:
        yield
    finally:
        engine._forward = before


def _check_independent(layout: Layout) -> None:
    """Check that a process can run its micro-batches again while others wait for gradients."""
    kind = "sync_batchnorm" if layout.sync_batchnorm else str(layout)
    if layout.sync_batchnorm or layout.processes != layout.replicate:
        raise ValueError(
            f"RetrySchedule (run.micro_batch=auto) runs micro-batches again in one process, but "
            f"with {kind} all processes take part in each: use replicate alone, or set the size "
            "of micro-batches"
        )


def schedule_for(layout: Layout, given: Schedule | None = None) -> Schedule | None:
    """Return the schedule that was given, or the one that a layout needs; None for the plain one.

    Raises:
        ValueError: the layout cannot execute the given schedule.
    """
    if layout.logical_ranks is not None:
        if not isinstance(given, LogicalSchedule | None):
            raise ValueError(
                f"schedule is {type(given).__name__}, but the layout has logical_ranks, which "
                "LogicalSchedule orders: leave schedule out"
            )
        return given or LogicalSchedule()
    if isinstance(given, RetrySchedule):
        _check_independent(layout)
    if given is not None:
        return given
    if layout.pipeline == 1:
        return None
    return PipelineSchedule(layout.schedule, layout.microbatches)  # type: ignore[arg-type]
