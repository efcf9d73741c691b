"""`PipelineSchedule`: micro-batches through the stages of a model that several processes hold."""

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
from stoker.engine.schedule import Backward, Forward, OnOutput, has_weight, scale_gradients
from stoker.parallel import Layout, Stages
from stoker.parallel.pipeline.forward_passes import Call, Shapes, forward_only, shapes_of
from stoker.parallel.pipeline.schedules import Kind, check_kind, fault_of, microbatches_for

_log = get_logger()

_KEPT = 4


class _Micro(NamedTuple):
    """A micro-batch, the samples it counts for, and what it looks like."""

    batch: Batch
    size: int
    shape: str


class PipelineSchedule:
    """Runs the micro-batches of a step through pipeline stages, in an order of torch's schedules.

    Only the process that has the last stage has outputs and a loss; the others run the same step
    without them. The step stays as it is: its `forward` is called there for each micro-batch, with
    ``engine(…)`` answering what the stages made of it. Where the first stage is, it is called up
    to that point, to learn what goes in; so a step calls the model once, and draws no random
    numbers before. The loss of a micro-batch counts by its samples (or tokens), as everywhere.

    The batches of an accumulated step make one long row of micro-batches, which fills and drains
    the pipeline once; gpipe, which holds the activations of a whole row, takes them one by one.

    Args:
        kind: "gpipe", all forward, then all back. "1f1b", forward and back in turn. "interleaved",
            the same with several stages in each process. "zero-bubble", with one stage or several;
            the gradients of weights, which nobody waits for, fill the gaps.
        microbatches: into how many a batch is cut; as many as there are stages if None. A batch
            that does not divide, such as the last of an epoch, is cut into fewer; where they are
            too few for the order, they go all forward, then all back.
        virtual: how many stages each process holds; what the layout says if None.
    """

    def __init__(
        self, kind: Kind = "1f1b", microbatches: int | None = None, virtual: int | None = None
    ) -> None:
        check_kind(kind)
        for name, number in (("microbatches", microbatches), ("virtual", virtual)):
            if number is not None and number < 1:
                raise ValueError(f"{name} is a positive number, got {number!r}")
        self.kind, self.microbatches, self.virtual = kind, microbatches, virtual
        self._stages: Stages | None = None
        self._count = 0
        self._shapes: dict[Any, tuple[Shapes, list[str]]] = {}
        self._drives: dict[Any, Any] = {}
        self._weighs: bool | None = None

    def microbatches_for(self, processes: int, virtual: int) -> int:
        """The number of micro-batches, made sure to fit the kind of schedule and the stages.

        Args:
            processes: of the pipeline.
            virtual: how many stages each of them has.
        """
        if self.virtual not in (None, virtual):
            raise ValueError(
                f"the schedule has virtual={self.virtual}, but the layout has virtual={virtual}"
            )
        return microbatches_for(self.kind, self.microbatches, processes, virtual)

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
        """Forward and back through the stages, all micro-batches of the step."""
        if backward != engine.backward:
            raise ValueError(
                "the step has a backward of its own, but in a pipeline every stage goes back by "
                "itself: put what it does into forward (the loss) or update (the gradients)"
            )
        stages = self._of(engine)
        judges = _Judges(engine, expected, forward, on_output)
        for row in self._rows(engine, stages, batches, sizes):
            self._drive(engine, stages, forward, row, judges)
        stages.share_tied_gradients()
        engine.parallel_model.after_backward()
        self._correct(engine, stages, judges)

    def forward_only(self, engine: Engine, batch: Batch, forward: Forward) -> Any:
        """What ``forward`` makes of a batch, where the last stage is; None elsewhere."""
        stages, everywhere = self._of(engine), engine.parallel_model.in_step(batch_size(batch))
        batch = _placed(engine, stages, batch)
        count = _most_parts(self._count, [int(row[0]) for row in everywhere])
        parts = split_batch(batch, count)
        calls = [call_of(engine, forward, part) for part in parts] if stages.has_first else []
        shapes = self._shapes_of(engine, stages, forward, describe(parts[0]), calls)
        outputs = forward_only(stages, shapes, calls, count, engine.device)
        if not stages.has_last:
            return None
        with _answering(engine, _once(concatenate(outputs))):
            return forward(engine, batch)

    def _of(self, engine: Engine) -> Stages:
        """The stages of the engine, that this schedule fits."""
        stages = engine.stages
        if stages is None:
            raise ValueError(
                "PipelineSchedule runs a model that is split into stages, but the engine's layout "
                "has none: Layout(pipeline=…)"
            )
        if self.kind == "zero-bubble" and engine.compiles:
            raise ValueError(
                "zero-bubble takes the backward pass apart, which a compiled model does not allow: "
                "leave out compile, or use 'interleaved' or '1f1b'"
            )
        if stages is not self._stages:
            self._count = self.microbatches_for(stages.processes, stages.virtual)
            for stage in stages.local.values():
                stage.executed = engine._executed(stage.run)
            self._stages, self._weighs = stages, None
            self._shapes.clear()
            self._drives.clear()
        return stages

    def _rows(
        self, engine: Engine, stages: Stages, batches: Sequence[Batch], sizes: Sequence[int]
    ) -> list[list[_Micro]]:
        """The micro-batches of a step; those of a row are alike, and go through in one go."""
        held, shapes = [batch_size(batch) for batch in batches], [describe(b) for b in batches]
        apart = [self.kind == "gpipe" or a != b for a, b in pairwise(["", *shapes])]
        everywhere = engine.parallel_model.in_step(*held, *apart)
        rows: list[list[_Micro]] = []
        for index, (batch, size) in enumerate(zip(batches, sizes, strict=True)):
            count = _most_parts(self._count, [int(row[index]) for row in everywhere])
            if not index:
                self._tell(held[index], count)
            if any(row[len(batches) + index] for row in everywhere):
                rows.append([])
            parts = split_batch(_placed(engine, stages, batch), count)
            rows[-1] += [_Micro(part, size // count, describe(part)) for part in parts]
        return rows

    def _tell(self, held: int, count: int) -> None:
        """Say so where already the first batch is not cut as asked for."""
        if not self._shapes and count != self._count:
            _log.warning(
                f"a batch of {held} samples does not divide into {self._count} micro-batches, and "
                f"is cut into {count}: choose a batch size that is a multiple of {self._count}"
            )

    def _drive(
        self,
        engine: Engine,
        stages: Stages,
        forward: Forward,
        micros: Sequence[_Micro],
        judges: "_Judges",
    ) -> None:
        """A row of micro-batches of one shape, forward and back."""
        from stoker.parallel.pipeline.driver import Drive

        shape, count = micros[0].shape, len(micros)
        calls = [call_of(engine, forward, m.batch) for m in micros] if stages.has_first else []
        shapes = self._shapes_of(engine, stages, forward, shape, calls)
        fault = fault_of(self.kind, count, stages.processes, stages.virtual)
        kind: Kind = self.kind if fault is None else "gpipe"
        key = (shape, str(shapes), count)
        if key not in self._drives:
            if len(self._drives) == _KEPT:  # each holds room for what it receives
                del self._drives[next(iter(self._drives))]
            self._drives[key] = Drive(kind, stages, shapes, count, engine.device)
        self._drives[key].run(calls, lambda output, number: judges.judge(output, micros[number]))

    def _shapes_of(
        self, engine: Engine, stages: Stages, forward: Forward, shape: str, calls: Sequence[Call]
    ) -> Shapes:
        """What the stages return for a micro-batch like this, found when it is first met."""
        key = (getattr(forward, "__qualname__", ""), engine.training, shape)
        called = [describe(call) for call in calls]
        if any(row[0] for row in engine.parallel_model.in_step(key not in self._shapes)):
            self._shapes[key] = (shapes_of(stages, calls, engine.device), called[:1])
        shapes, before = self._shapes[key]
        for now in called:
            if [now] != before:
                raise ValueError(
                    f"the step called the model with {now}, and with {before[0]} for another "
                    f"micro-batch of the same shape, {shape}: in a pipeline the shape of what "
                    "goes in follows from that of the batch"
                )
        return shapes

    def _correct(self, engine: Engine, stages: Stages, judges: "_Judges") -> None:
        """Correct for weights that only the last stage knew, such as the tokens of a batch.

        Whether the step says such weights is agreed on in the first step, so that those that do
        not need nothing from other processes.
        """
        if self._weighs is None:
            self._weighs = dist.any_rank(judges.told)
        elif stages.has_last and judges.told != self._weighs:
            raise ValueError(
                "the step gave some of its outputs a weight and some not: in a pipeline, give "
                "every Output(weight=…), or none"
            )
        if self._weighs and not judges.sums:
            found = dist.all_reduce_sum(judges.found)[0] / engine.parallel_model.parts
            scale_gradients(engine, judges.expected / found if found else 0.0)


def _most_parts(most: int, sizes: Sequence[int]) -> int:
    """Into how many parts batches of these sizes can all be cut evenly, up to ``most``."""
    return next(n for n in range(most, 0, -1) if n == 1 or not any(size % n for size in sizes))


class _Judges:
    """Gives micro-batches their share in the loss of a step, where the last stage is.

    Attributes:
        found: the weights of all so far.
        told: whether the step has said weights of its own.
        sums: whether losses are sums and not means.
    """

    def __init__(
        self, engine: Engine, expected: float, forward: Forward, on_output: OnOutput
    ) -> None:
        self._engine, self._forward, self._took = engine, forward, on_output
        self.expected, self.found, self.told = expected, 0.0, False
        self.sums = engine.sums

    def judge(self, output: Any, micro: _Micro) -> Tensor:
        """The loss that goes back."""
        engine = self._engine
        with _answering(engine, _once(output)):
            result = self._forward(engine, micro.batch)
        self.told |= has_weight(result)
        taken = self._took(result, micro.size)
        if not micro.size:  # it only keeps other processes company
            taken.weight = 0.0
        assert taken.loss is not None
        assert taken.weight is not None
        self.found += taken.weight
        share = taken.weight / self.expected
        if self.sums:
            share = engine.parallel_model.parts if micro.size else 0.0
        return taken.loss * share


class _Called(BaseException):
    """Leaves a step at the moment it calls the model."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.call = (args, kwargs)


def call_of(engine: Engine, forward: Forward, batch: Batch) -> Call:
    """The arguments with which ``forward`` calls the model for this batch; it is left there."""

    def leave(*args: Any, **kwargs: Any) -> Any:
        raise _Called(*args, **kwargs)

    before = torch.get_rng_state()
    with _answering(engine, leave):
        try:
            forward(engine, batch)
        except _Called as found:
            if not torch.equal(before, torch.get_rng_state()):
                raise ValueError(
                    "the step drew random numbers before it called the model: in a pipeline the "
                    "first and the last stage would draw different ones; draw them in the loader"
                ) from None
            return found.call
    raise ValueError(
        "the step did not call engine(…): a pipeline runs the model once for each batch"
    )


def _placed(engine: Engine, stages: Stages, batch: Batch) -> Batch:
    """The batch on the device, where the first or the last stage reads it."""
    return engine.place(batch) if stages.has_first or stages.has_last else batch


def _once(output: Any) -> Callable[..., Any]:
    """A model that answers one call with what the stages made."""
    left = [output]

    def answer(*args: Any, **kwargs: Any) -> Any:
        if not left:
            raise ValueError(
                "the step called the model twice for one batch: a pipeline runs it once; join "
                "what goes in along the batch"
            )
        return left.pop()

    return answer


@contextmanager
def _answering(engine: Engine, model: Callable[..., Any]) -> Iterator[None]:
    """Within it, calls of the engine go to this instead of its model."""
    before, engine._forward = engine._forward, model
    try:
        yield
    finally:
        engine._forward = before


def schedule_of(layout: Layout) -> PipelineSchedule | None:
    """The schedule that a layout asks for; None where it has no stages."""
    if layout.pipeline == 1:
        return None
    return PipelineSchedule(layout.schedule, layout.microbatches)  # type: ignore[arg-type]
