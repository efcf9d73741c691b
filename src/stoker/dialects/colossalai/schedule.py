"""Schedules: how a batch is read, and the order of forward and backward of its micro-batches."""

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


class _DivisiblePipeline(_Pipeline):
    """A pipeline that requires batches to divide evenly, as the old schedules did."""

    def run(self, context: StepContext) -> None:
        for batch in context.batches:
            self._check(batch)
        super().run(context)

    def forward_only(self, engine: Core, batch: Any, forward: Any) -> Any:
        self._check(batch)
        return super().forward_only(engine, batch, forward)

    def _check(self, batch: Any) -> None:
        size, count = batch_size(batch), self.microbatches or 1
        if size % count:
            raise ValueError(
                f"a batch of {size} samples does not divide into {count} micro-batches"
            )


class BaseSchedule:
    """Read batches and run them through the engine.

    ``data_process_func`` converts a batch to ``(data, label)``; ``batch_size`` is the number of
    samples of the last output.
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
        self.fp16: dict[str, Any] = {}
        self.layout_options: dict[str, Any] = {}

    def load_batch(self, data_iter: Iterator[Any]) -> Any:
        """Return the next batch."""
        batch = next(data_iter)
        self.batch_size = batch_size(batch)
        return batch

    def read(self, batch: Any) -> tuple[Any, Any]:
        """Return a batch as ``(data, label)``."""
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
        """Run the next batch and return ``(output, label, loss)``; gradients accumulate."""
        if not forward_only and not return_loss:
            raise ValueError("return_loss=False needs forward_only=True: backward needs a loss")
        batch, step = self.load_batch(data_iter), DialectStep(self)
        core, size = engine.core, batch_size(batch)
        outputs: list[Output] = []
        if forward_only:
            with torch.no_grad():
                forward = step.forward if return_loss else step.without_loss
                output = self.core.forward_only(core, batch, core.precision.cast(forward))
                outputs += [] if output is None else [output]
        else:
            on_output = _collector(outputs, size)
            count = engine.gradient_accumulation if self.kind is not None else 1
            backward = core.backward if self.kind is not None else engine.backward
            forward = core.precision.cast(step.forward)
            with engine.sync_context():
                context = StepContext(
                    core, [batch], [size], size * count, forward, backward, on_output
                )
                self.core.run(context)
            engine.count_backward(bypassed=self.kind is not None)
        output, label, loss = joined(outputs, sums=core.loss_is_sum)
        return (output, label, loss) if return_output_label else (None, None, loss)


class NonPipelineSchedule(BaseSchedule):
    """Run a batch without micro-batches."""


class NoPipelineSchedule(NonPipelineSchedule):
    """The older name of `NonPipelineSchedule`; ``amp_type`` sets the precision like the config."""

    def __init__(self, amp_type: Any = None, amp_config: Any = None) -> None:
        super().__init__()
        self.fp16 = _fp16(amp_type, amp_config)


class PipelineSchedule(BaseSchedule):
    """Run micro-batches through pipeline stages with the 1F1B schedule.

    ``data_process_func`` takes ``(stage_output, batch)``; ``stage_output`` is None on the first
    stage. ``tensor_shape`` is not needed, because shapes are inferred.
    """

    kind: str | None = "1f1b"
    _takes = ("stage_output", "batch")

    def __init__(
        self,
        num_microbatches: int,
        data_process_func: Process | None = None,
        tensor_shape: Any = None,
        scatter_gather_tensors: bool = False,
        *,
        amp_type: Any = None,
        amp_config: Any = None,
    ) -> None:
        super().__init__(data_process_func)
        self.fp16 = _fp16(amp_type, amp_config)
        if scatter_gather_tensors:
            raise ValueError("scatter_gather_tensors is not supported in a pipeline: remove it")
        self.num_microbatches, self.tensor_shape = num_microbatches, tensor_shape
        self.layout_options = {"microbatches": num_microbatches}
        self.core = _DivisiblePipeline(self.kind, num_microbatches)  # type: ignore[arg-type]


class InterleavedPipelineSchedule(PipelineSchedule):
    """A `PipelineSchedule` with ``num_model_chunks`` stages in each process."""

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


def _fp16(amp_type: Any, amp_config: Any) -> dict[str, Any]:
    """Return the arguments of a schedule as the key ``fp16`` of a config."""
    if amp_type is None and amp_config:
        raise ValueError("amp_config needs an amp_type, such as AMP_TYPE.TORCH")
    return {} if amp_type is None else {"mode": amp_type, **(amp_config or {})}


class DialectStep(Step):
    """The step: forward and loss of a batch as the schedule reads it."""

    def __init__(self, schedule: BaseSchedule) -> None:
        self._read, self.stands_for = schedule.read, type(schedule).__name__
        self._checked = False

    def forward(self, engine: Core, batch: Any) -> Output:
        """Run the model and the criterion; tuples and dicts become the criterion's arguments."""
        data, label = self._read(batch)
        if engine.criterion is None:
            return super().forward(engine, (data, label))
        outputs = call_model(engine, data)
        if not self._checked:
            self._checked, fault = True, target_error(engine.given_criterion, outputs, label)
            if fault is not None:
                raise ValueError(f"criterion {type(engine.given_criterion).__name__} got {fault}")
        try:
            return Output(_compute_loss(engine.criterion, outputs, label), outputs, label)
        except (TypeError, RuntimeError) as error:
            error.add_note(f"the criterion got {describe(outputs)} and {describe(label)}")
            raise

    def without_loss(self, engine: Core, batch: Any) -> Output:
        """Return the outputs without a loss."""
        data, label = self._read(batch)
        return Output(None, call_model(engine, data), label)


def joined(outputs: list[Output], *, sums: bool) -> Seen:
    """Join outputs, labels and loss of all micro-batches; None on stages that have none."""
    if not outputs:
        return None, None, None
    if len(outputs) == 1:
        one = outputs[0]
        return one.outputs, one.targets, None if one.loss is None else one.loss.detach()
    labels = None if outputs[0].targets is None else concatenate([o.targets for o in outputs])
    return concatenate([o.outputs for o in outputs]), labels, mean_loss(outputs, sums=sums)


def _collector(outputs: list[Output], total: int) -> Any:
    def on_output(output: Output, size: int | None = None) -> Output:
        output.weight = total if size is None else size
        outputs.append(output)
        return output

    return on_output


def _compute_loss(criterion: Callable[..., Any], outputs: Any, label: Any) -> Any:
    if isinstance(outputs, Tensor) and isinstance(label, Tensor):
        return criterion(outputs, label)
    args, named = _spread(outputs)
    more, also = ((), {}) if label is None else _spread(label)
    if named and more and not isinstance(label, Tensor):
        raise TypeError("outputs are a dict and labels are a list: expected a dict of labels")
    return criterion(*args, *more, **named, **also)


def _spread(value: Any) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
    if isinstance(value, Mapping):
        return (), value
    return (tuple(value) if isinstance(value, tuple | list) else (value,)), {}
