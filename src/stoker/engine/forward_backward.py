"""`ForwardBackward`: run batches forward and backward in any layout, for your own loop."""

from collections.abc import Callable
from typing import Any

from torch import Tensor

from stoker.core import dist
from stoker.core.tree import batch_size
from stoker.core.types import Batch, Output
from stoker.engine.batch import find_loss, forward_with_criterion, forward_with_model_loss
from stoker.engine.engine import Engine
from stoker.engine.pipeline_schedule import schedule_for
from stoker.engine.schedule import PlainSchedule, Schedule, StepContext, mean_loss, scale_gradients
from stoker.engine.target_weight import StepWeights, weigh_batches


class ForwardBackward:
    """Runs batches forward and backward, through pipeline stages if the layout has them.

        forward_backward = ForwardBackward(engine)
        for batch in loader:
            engine.zero_grad()
            loss = forward_backward(batch)
            engine.step()

    Without a pipeline, ``engine.backward(engine.criterion(engine(x), y))`` does the same.

    Args:
        engine: runs the batches.
        forward: a function ``(engine, batch) -> loss | Output``. Without it, batches are pairs
            for model and criterion, or the model returns its own loss.
    """

    def __init__(
        self, engine: Engine, forward: Callable[[Engine, Batch], Any] | None = None
    ) -> None:
        default = forward_with_model_loss if engine.criterion is None else forward_with_criterion
        self._engine = engine
        self._is_default = forward is None
        self._forward = engine.precision.cast(forward or default)
        self._schedule: Schedule = schedule_for(engine.layout) or PlainSchedule()

    def __call__(self, *batches: Batch) -> Tensor | None:
        """Leave the gradients of one update in the parameters, synchronized between processes.

        Each batch is weighted by its samples (or by the targets that the criterion does not
        ignore), across all processes. All processes pass the same
        number of batches.

        Returns:
            The detached mean loss over the samples of this process, or None if this process does
            not hold the last pipeline stage.
        """
        engine = self._engine
        outputs: list[Output] = []
        sizes = [batch_size(batch) for batch in batches]
        expected, ranks = float(sum(sizes)), engine.parallel_model.data_ranks
        if ranks > 1:
            expected = dist.all_reduce_sum(expected)[0] / dist.world_size()
        weights = StepWeights(sizes, expected)
        if self._is_default and engine.target_weight is not None:
            weights = weigh_batches(
                engine.target_weight, batches, sizes, expected, engine.parallel_model
            )

        def on_output(result: Any, size: float | None = None) -> Output:
            output = result if isinstance(result, Output) else Output(find_loss(result)[0])
            if output.weight is None:
                output.weight = weights.batches[len(outputs)] if size is None else size
            outputs.append(output)
            return output

        self._schedule.run(
            StepContext(
                engine,
                batches,
                weights.batches,
                weights.expected,
                self._forward,
                engine.backward,
                on_output,
                weights.weigh,
                restart=outputs.clear,
            )
        )
        if weights.total is not None and (total := weights.total()) != weights.expected:
            scale_gradients(engine, weights.expected / total if total else 0.0)
        return mean_loss(outputs, sums=engine.loss_is_sum)
