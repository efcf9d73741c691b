"""`ForwardBackward`: a batch forward and back in any layout, for loops of one's own."""

from collections.abc import Callable
from typing import Any

from torch import Tensor

from stoker.core import dist
from stoker.core.tree import batch_size
from stoker.core.types import Batch, Output
from stoker.engine.batch import find_loss, self_judged, supervised
from stoker.engine.engine import Engine
from stoker.engine.pipeline_schedule import schedule_of
from stoker.engine.schedule import PlainSchedule, Schedule, mean_loss


class ForwardBackward:
    """Runs batches forward and back, through the stages of a pipeline where there are some.

        forward_backward = ForwardBackward(engine)
        for batch in loader:
            engine.zero_grad()
            loss = forward_backward(batch)
            engine.step()

    Where the model is whole, ``engine.backward(engine.criterion(engine(x), y))`` does the same.

    Args:
        engine: what runs them.
        forward: a function ``(engine, batch) -> loss | Output``; without one, batches are pairs
            for model and criterion, or the model returns its own loss.
    """

    def __init__(
        self, engine: Engine, forward: Callable[[Engine, Batch], Any] | None = None
    ) -> None:
        usual = self_judged if engine.criterion is None else supervised
        self._engine = engine
        self._forward = engine.precision.cast(forward or usual)
        self._schedule: Schedule = schedule_of(engine.layout) or PlainSchedule()

    def __call__(self, *batches: Batch) -> Tensor | None:
        """Leave the gradients of one update in the parameters, shared between processes.

        Every batch counts by its samples, also over processes, which give as many batches each.

        Returns:
            The mean loss over the samples of this process, detached. None where another process
            has it: that of the last stage.
        """
        engine = self._engine
        outputs: list[Output] = []
        sizes = [batch_size(batch) for batch in batches]
        samples = float(sum(sizes))
        if engine.parallel_model.parts > 1:
            samples = dist.all_reduce_sum(samples)[0] / dist.world_size()

        def on_output(result: Any, size: int | None = None) -> Output:
            output = result if isinstance(result, Output) else Output(find_loss(result)[0])
            if output.weight is None:
                output.weight = sizes[len(outputs)] if size is None else size
            outputs.append(output)
            return output

        self._schedule.run(
            engine, batches, sizes, samples, self._forward, engine.backward, on_output
        )
        return mean_loss(outputs, sums=engine.sums)
