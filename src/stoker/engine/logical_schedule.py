"""`LogicalSchedule`: the micro-batches of logical ranks, one rank after another."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from stoker.core.types import Batch, Output
from stoker.engine.engine import Engine
from stoker.engine.schedule import Forward, StepContext, scale_gradients
from stoker.parallel import LogicalModel


@dataclass(frozen=True, slots=True)
class LogicalStep:
    """What a `LogicalSchedule` needs to know of a step besides its batches.

    Args:
        step: the number of the step, or of the last one before an evaluation.
        first_round: the number of micro-batches that a logical rank had in this pass before.
        rounds: the number of micro-batches per logical rank.
        outputs: receives the outputs of all logical ranks, in their order.
        reads_outputs: whether hooks read the outputs of the model and the targets.
    """

    step: int
    first_round: int
    rounds: int
    outputs: list[Output]
    reads_outputs: bool


class LogicalSchedule:
    """Runs the logical ranks of this process one after another, each with its micro-batches.

    Each micro-batch is weighted by its samples (or tokens) among those of all logical ranks, and
    the gradients of logical ranks are added in a fixed order. Hooks see the outputs of all logical
    ranks on every process.
    """

    def run(self, context: StepContext) -> None:
        """Run forward and backward, rank by rank."""
        engine, logical = context.engine, context.logical
        model = _model_of(engine)
        if logical is None:
            raise RuntimeError(
                "the layout has logical_ranks, which only Trainer.fit executes, with its own "
                "schedule: train with it, or leave logical_ranks out"
            )
        outputs: dict[int, Output] = {}
        with model.step():
            for index in range(len(model.logical_ranks)):
                with model.rank(index, logical.step):
                    self._run_rank(context, model, index, outputs)
        _share(model, logical, outputs)
        total = float(sum(output.weight or 0.0 for output in logical.outputs)) / model.data_ranks
        if total != context.expected_size and not engine.loss_is_sum:
            scale_gradients(engine, context.expected_size / total if total else 0.0)

    def _run_rank(
        self, context: StepContext, model: LogicalModel, index: int, outputs: dict[int, Output]
    ) -> None:
        engine, ranks = context.engine, len(model.logical_ranks)
        total = context.expected_size * model.data_ranks
        overlaps = index == ranks - 1 and context.backward == engine.backward
        own = [n for n in range(index, len(context.batches), ranks) if context.sizes[n]]
        for number in own:
            result = context.forward(engine, engine.place(context.batches[number]))
            output = outputs[number] = context.on_output(result, context.sizes[number])
            loss, weight = output.loss, output.weight
            assert loss is not None
            if weight:
                if overlaps and number == own[-1]:
                    model.send_in_backward()
                context.backward(loss if engine.loss_is_sum else loss / (total / weight))

    def forward_only(self, engine: Engine, batch: Batch, forward: Forward) -> Any:
        """Return ``forward(engine, batch)``."""
        with _model_of(engine).gathered():
            return forward(engine, engine.place(batch))

    def evaluate(
        self,
        engine: Engine,
        batches: Sequence[Batch],
        forward: Callable[[int, Batch], Output],
        logical: LogicalStep,
    ) -> None:
        """Evaluate a batch of each logical rank of this process.

        Args:
            engine: runs the model.
            batches: the batches, in the order of logical ranks.
            forward: returns the output, with its weight, of a batch and its number.
            logical: the step; it receives the outputs.
        """
        model = _model_of(engine)
        outputs = {}
        with model.gathered():
            for index, batch in enumerate(batches):
                with model.evaluated_rank(index, logical.step, logical.first_round):
                    outputs[index] = forward(index, engine.place(batch))
        _share(model, logical, outputs)


def _share(model: LogicalModel, logical: LogicalStep, outputs: dict[int, Output]) -> None:
    logical.outputs[:] = model.share_outputs(outputs, logical.rounds, tensors=logical.reads_outputs)


def _model_of(engine: Engine) -> LogicalModel:
    model = engine.parallel_model
    if not isinstance(model, LogicalModel):
        raise ValueError(
            f"LogicalSchedule is for a layout with logical_ranks, but the layout is {engine.layout}"
        )
    return model
