"""Schedules: how a batch is read, and the order in which its micro-batches go forward and back."""

import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from stoker import Engine as Core
from stoker import Output, PlainSchedule, Schedule, Step
from stoker import PipelineSchedule as _Pipeline
from stoker.core.tree import batch_size, concatenate, describe
from stoker.engine.batch import call_model, split_inputs, target_error
from stoker.engine.schedule import StepContext, mean_loss

Seen = tuple[Any, Any, Tensor | None]
Process = Callable[..., tuple[Any, Any]]


class _Divided(_Pipeline):
    """Takes only batches that divide into micro-batches, as the old schedules did."""

    def run(self, context: StepContext) -> None:
        """Run forward and backward if every batch divides."""
        for batch in context.batches:
            self._check(batch)
        super().run(context)

    def forward_only(self, engine: Core, batch: Any, forward: Any) -> Any:
        """Forward, if it does."""
        self._check(batch)
        return super().forward_only(engine, batch, forward)

    def _check(self, batch: Any) -> None:
        size, count = batch_size(batch), self.microbatches or 1
        if size % count:
            raise ValueError(
                f"a batch of {size} samples does not divide into {count} micro-batches"
            )


class BaseSchedule:
    """Reads batches, and runs them through the engine.

    ``data_process_func`` makes ``(data, label)`` of a batch that is no such pair; ``batch_size``
    is the samples behind the last output here.
    """

    core: Schedule = PlainSchedule()
    kind: str | None = None
    _takes: tuple[str, ...] = ("batch",)

    def __init__(self, data_process_func: Process | None = None) -> None:
        if data_process_func is not None:
            found = len(inspect.signature(data_process_func).parameters)
            if found != len(self._takes):
                raise ValueError(
                    f"data_process_func takes {found} arguments, but {type(self).__name__} calls "
                    f"it with {len(self._takes)}: ({', '.join(self._takes)})"
                )
        self.data_process_func = data_process_func
        self.batch_size: float = 0
        self.layout_options: dict[str, Any] = {}

    def load_batch(self, data_iter: Iterator[Any]) -> Any:
        """The next batch."""
        batch = next(data_iter)
        self.batch_size = batch_size(batch)
        return batch

    def read(self, batch: Any) -> tuple[Any, Any]:
        """A batch as ``(data, label)``."""
        process = self.data_process_func
        if process is None:
            return split_inputs(batch)
        return process(batch) if len(self._takes) == 1 else process(None, batch)

    def forward_backward_step(
        self,
        engine: Any,
        data_iter: Iterator[Any],
        forward_only: bool = False,
        return_loss: bool = True,
        return_output_label: bool = True,
    ) -> Seen:
        """``(output, label, loss)`` of the next batch; gradients are left in the parameters."""
        if not forward_only and not return_loss:
            raise ValueError("return_loss=False leaves nothing to go back from: set forward_only")
        batch, step = self.load_batch(data_iter), DialectStep(self)
        core, size = engine.core, batch_size(batch)
        outputs: list[Output] = []
        if forward_only:
            with torch.no_grad():
                forward = step.forward if return_loss else step.without_loss
                output = self.core.forward_only(core, batch, core.precision.cast(forward))
                outputs += [] if output is None else [output]
        else:
            on_output = _taker(outputs, size)
            shares = engine.gradient_accumulation if self.kind is not None else 1
            backward = core.backward if self.kind is not None else engine.backward
            forward = core.precision.cast(step.forward)
            with engine.sharing():
                context = StepContext(
                    core, [batch], [size], size * shares, forward, backward, on_output
                )
                self.core.run(context)
            engine.count_backward(past=self.kind is not None)
        output, label, loss = joined(outputs, sums=core.loss_is_sum)
        return (output, label, loss) if return_output_label else (None, None, loss)


class NonPipelineSchedule(BaseSchedule):
    """A batch goes forward and back as one."""


class NoPipelineSchedule(NonPipelineSchedule):
    """The older name of it, which chose the precision, too; the config does that: ``fp16``."""

    def __init__(self, amp_type: Any = None, amp_config: Any = None) -> None:
        if amp_type is not None or amp_config is not None:
            raise ValueError("precision belongs into the config: fp16 = dict(mode=AMP_TYPE.TORCH)")
        super().__init__()


class PipelineSchedule(BaseSchedule):
    """Micro-batches through pipeline stages, forward and back in turn.

    ``data_process_func`` takes ``(stage_output, batch)``, of which the first is None where the
    stage is the first. The ``tensor_shape`` between stages is found out anyway.
    """

    kind: str | None = "1f1b"
    _takes = ("stage_output", "batch")

    def __init__(
        self,
        num_microbatches: int,
        data_process_func: Process | None = None,
        tensor_shape: Any = None,
        scatter_gather_tensors: bool = False,
    ) -> None:
        super().__init__(data_process_func)
        if scatter_gather_tensors:
            raise ValueError("scatter_gather_tensors is for layers that are split within a stage")
        self.num_microbatches, self.tensor_shape = num_microbatches, tensor_shape
        self.layout_options = {"microbatches": num_microbatches}
        self.core = _Divided(self.kind, num_microbatches)  # type: ignore[arg-type]


class InterleavedPipelineSchedule(PipelineSchedule):
    """The same with ``num_model_chunks`` stages in each process."""

    kind = "interleaved"

    def __init__(
        self,
        num_microbatches: int,
        num_model_chunks: int,
        data_process_func: Process | None = None,
        tensor_shape: Any = None,
        scatter_gather_tensors: bool = False,
    ) -> None:
        super().__init__(num_microbatches, data_process_func, tensor_shape, scatter_gather_tensors)
        self.num_model_chunks = num_model_chunks
        self.layout_options["virtual"] = num_model_chunks


class DialectStep(Step):
    """What one update means: a batch as the schedule reads it, and its loss."""

    def __init__(self, schedule: BaseSchedule) -> None:
        self._read, self.stands_for = schedule.read, type(schedule).__name__
        self._looked = False

    def forward(self, engine: Core, batch: Any) -> Output:
        """Outputs and labels that are tuples or dicts are the criterion's arguments."""
        data, label = self._read(batch)
        if engine.criterion is None:
            return super().forward(engine, (data, label))
        outputs = call_model(engine, data)
        if not self._looked:
            self._looked, fault = True, target_error(engine.given_criterion, outputs, label)
            if fault is not None:
                raise ValueError(f"criterion {type(engine.given_criterion).__name__} got {fault}")
        try:
            return Output(_judged(engine.criterion, outputs, label), outputs, label)
        except (TypeError, RuntimeError) as error:
            error.add_note(f"the criterion got {describe(outputs)} and {describe(label)}")
            raise

    def without_loss(self, engine: Core, batch: Any) -> Output:
        """Outputs alone."""
        data, label = self._read(batch)
        return Output(None, call_model(engine, data), label)


def joined(outputs: list[Output], *, sums: bool) -> Seen:
    """Output, label and loss of all micro-batches; None each where other stages have them."""
    if not outputs:
        return None, None, None
    if len(outputs) == 1:
        one = outputs[0]
        return one.outputs, one.targets, None if one.loss is None else one.loss.detach()
    labels = None if outputs[0].targets is None else concatenate([o.targets for o in outputs])
    return concatenate([o.outputs for o in outputs]), labels, mean_loss(outputs, sums=sums)


def _taker(outputs: list[Output], whole: int) -> Any:
    def on_output(output: Output, size: int | None = None) -> Output:
        output.weight = whole if size is None else size
        outputs.append(output)
        return output

    return on_output


def _judged(criterion: Callable[..., Any], outputs: Any, label: Any) -> Any:
    if isinstance(outputs, Tensor) and isinstance(label, Tensor):
        return criterion(outputs, label)
    args, named = _spread(outputs)
    more, also = ((), {}) if label is None else _spread(label)
    if named and more and not isinstance(label, Tensor):
        raise TypeError("outputs are a dict and labels a list: expected a dict of labels, too")
    return criterion(*args, *more, **named, **also)


def _spread(value: Any) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
    if isinstance(value, Mapping):
        return (), value
    return (tuple(value) if isinstance(value, tuple | list) else (value,)), {}
