"""`Step`: what one update means."""

import inspect
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Any, ClassVar, Protocol

from torch import Tensor, isfinite, nn

from stoker.core.errors import NonFiniteError
from stoker.core.tree import describe
from stoker.core.types import Batch, Output
from stoker.engine import (
    Engine,
    LogicalSchedule,
    LogicalStep,
    PlainSchedule,
    Schedule,
    StepContext,
)
from stoker.engine.batch import (
    call_model,
    find_loss,
    forward_with_criterion,
    forward_with_model_loss,
    split_inputs,
    target_error,
)
from stoker.engine.schedule import scale_gradients
from stoker.engine.target_weight import (
    StepWeights,
    has_ignored,
    warn_about_ignored,
    weigh_batches,
)
from stoker.run import Run, refresh_window, repeat_window


class Points(Protocol):
    """The hook points of a run, as a step fires them."""

    @property
    def calls(self) -> Mapping[str, Collection[object]]:
        """By point, what is called there; empty for a point that no hook uses."""
        ...

    @property
    def reads_outputs(self) -> Collection[str]:
        """Where hooks read the outputs of the model: "train", "val", both or neither."""
        ...

    def fire(self, point: str) -> None:
        """Call the hooks of a point."""
        ...


class _NoPoints:
    """No hooks: a step outside of a trainer."""

    calls: Mapping[str, Collection[object]] = defaultdict(tuple)
    reads_outputs: Collection[str] = ()

    def fire(self, point: str) -> None:
        """Call nothing."""


class Step:
    """What one update means. A run has exactly one step; override `train`, or a part of it.

        train                      one update from run.batches:
            zero_grad
            per micro-batch:  forward → after_forward → backward
            before_update
            update                 unscale, clip, optimizer
            adjust_lr              after every update, or once per epoch (engine.lr_step)
        val_forward                one validation batch; `forward` unless overridden
        predict                    one batch of a prediction

    The default parts read batches that are a tensor, a pair ``(inputs, targets)`` whose inputs are
    a tensor, a tuple or a dict, or a dict. With a criterion the loss is
    ``criterion(model(inputs), targets)``; without one the model returns its own loss.
    """

    schedule: Schedule = PlainSchedule()
    """The order of micro-batches. The trainer sets it if you pass one."""

    points: Points = _NoPoints()
    """The hook points. The trainer sets them when a task begins."""

    _checked = False
    _has_ignored = False
    _warned = False

    owns: ClassVar[frozenset[str]] = frozenset()
    """The names of the methods that a subclass has overridden."""

    def __init_subclass__(cls) -> None:
        parts = ("forward", "val_forward", "predict", "backward", "update", "adjust_lr", "train")
        cls.owns = frozenset(p for p in parts if getattr(cls, p) is not getattr(Step, p))

    def begin(self, points: Points) -> None:
        """Begin a task with these hook points; the trainer calls it."""
        self.points, self._checked = points, False

    def forward(self, engine: Engine, batch: Batch) -> Output:
        """Compute model and loss for one training batch."""
        if engine.criterion is None:
            return forward_with_model_loss(engine, batch)
        return forward_with_criterion(engine, batch)

    def val_forward(self, engine: Engine, batch: Batch) -> Output:
        """Compute one validation batch, without gradients and in evaluation mode."""
        return self.forward(engine, batch)

    def predict(self, engine: Engine, batch: Batch) -> Any:
        """Return the model's outputs for one batch, without its targets."""
        return call_model(engine, split_inputs(batch)[0])

    def backward(self, engine: Engine, loss: Tensor) -> None:
        """Add the gradients of one micro-batch to those of the step."""
        engine.backward(loss)

    def update(self, engine: Engine) -> bool | None:
        """Update the parameters; return False if nothing changed, which then is not a step."""
        return engine.update()

    def adjust_lr(self, engine: Engine, run: Run) -> None:
        """Set the learning rate for the next update (or epoch)."""
        engine.adjust_lr()

    def train(self, run: Run) -> bool | None:
        """Make one update from ``run.batches``; return False if there was none.

        An override calls ``run.add_output(Output(…))`` to show hooks a loss, and
        ``self.points.fire("before_update")`` to let them act before the update.
        """
        engine = run.engine
        if engine.parallel_model.logical_ranks is None:
            weights, context = self._context(run)
            self.schedule.run(context)
        else:
            accumulate, repeat = partial(self._accumulate, run), partial(repeat_window, run)
            weights = engine.parallel_model.complete(accumulate, repeat)
        if weights.total is not None and (total := weights.total()) != weights.expected:
            scale_gradients(engine, weights.expected / total if total else 0.0)
        if engine.scaler is not None:
            engine.unscale()
        if self.points.calls["before_update"]:
            self.points.fire("before_update")
        if run.skip_reason is not None:
            engine.skip_update()
            return False
        lr_updates = engine.lr_updates
        if self.update(engine) is False:
            return False
        if engine.lr_step == "step" and engine.lr_updates == lr_updates:  # not engine.step()
            self.adjust_lr(engine, run)
        return True

    def _accumulate(self, run: Run) -> StepWeights:
        """Compute the gradients of logical ranks; return the weights of their batches."""
        refresh_window(run)
        weights, context = self._context(run)
        self.schedule.run(context)
        return weights

    def _context(self, run: Run) -> tuple[StepWeights, StepContext]:
        """Begin a step: return the weights of its batches, and what the schedule needs."""
        engine, model = run.engine, run.engine.parallel_model
        engine.zero_grad()
        weights = self._weigh(run)
        forward = engine.precision.cast(self.forward)
        backward = partial(self.backward, engine) if "backward" in self.owns else engine.backward
        on_output = partial(self._on_output, run)
        return weights, StepContext(
            engine,
            run.batches,
            weights.batches,
            weights.expected,
            forward,
            backward,
            on_output,
            weights.weigh,
            None if model.logical_ranks is None else self._logical_step(run, "train"),
            run.outputs.clear,
        )

    def validate(self, run: Run, forward: Callable[[Engine, Batch], Any]) -> None:
        """Run the current validation batch forward, and add its output to the run."""
        engine = run.engine
        if engine.parallel_model.logical_ranks is not None:
            evaluate = partial(self._validate_logical_ranks, run, forward)
            engine.parallel_model.complete(evaluate, partial(repeat_window, run))
            return
        output = self.schedule.forward_only(engine, run.batches[0], forward)
        if output is not None:
            weight = None if engine.target_weight is None else self.val_weight(run)
            run.add_output(as_val_output(self, output), weight)

    def val_weight(self, run: Run, number: int = 0) -> float | None:
        """Return the weight of a current validation batch; None if it is its samples."""
        weigh = run.engine.target_weight
        if weigh is None or not run.sizes[number] or self.owns & {"forward", "val_forward"}:
            return None
        return weigh.of(run.batches[number])

    def _validate_logical_ranks(self, run: Run, forward: Callable[[Engine, Batch], Any]) -> None:
        refresh_window(run)

        def evaluated(number: int, batch: Batch) -> Output:
            output = as_val_output(self, forward(run.engine, batch))
            run.add_output(output, self.val_weight(run, number))
            return output

        assert isinstance(self.schedule, LogicalSchedule)
        logical = self._logical_step(run, "val")
        self.schedule.evaluate(run.engine, run.batches, evaluated, logical)

    def _logical_step(self, run: Run, reader: str) -> LogicalStep:
        assert run.feeder is not None
        rounds = run.feeder.rounds
        reads_outputs = reader in self.points.reads_outputs
        return LogicalStep(run.step, rounds.start, len(rounds), run.outputs, reads_outputs)

    def _weigh(self, run: Run) -> StepWeights:
        """Return the weights of the batches: their samples, or the targets that count."""
        engine, ranks = run.engine, run.engine.parallel_model.data_ranks
        weigh = engine.target_weight
        if weigh is not None and "forward" not in self.owns:
            return weigh_batches(weigh, run.batches, run.sizes, run.expected, engine.parallel_model)
        is_split = ranks > 1 or len(run.batches) > 1 or engine.stages is not None
        if is_split and not self._has_ignored:
            self._has_ignored = not engine.loss_is_sum and has_ignored(run.batches)
        return StepWeights(run.sizes, run.expected)

    def _on_output(self, run: Run, result: Any, size: float | None = None) -> Output:
        """Return what `forward` returned as an output with a loss, after the hooks saw it."""
        output: Output = result if result.__class__ is Output else as_output(self, result)
        if output.loss is None:
            raise ValueError(_no_loss(self, run.engine, output))
        if not self._checked and size != 0:  # a loss over nothing may be NaN
            check_first_output(self, run, output)
            # Which output is the first of a process depends on how many there are.
            self._checked = run.engine.parallel_model.logical_ranks is None or run.step > 0
        if self._has_ignored and not self._warned and output.weight is None:
            warn_about_ignored(run.engine.parallel_model.data_ranks, len(run.batches))
            self._warned = True
        run.add_output(output, size)
        if self.points.calls["after_forward"]:
            self.points.fire("after_forward")
        return output


class FunctionStep(Step):
    """A step whose forward is a function ``(engine, batch) -> loss | Output | dict``."""

    def __init__(self, function: Callable[[Engine, Batch], Any]) -> None:
        self.function = function
        self.__name__ = getattr(function, "__name__", type(function).__name__)

    def forward(self, engine: Engine, batch: Batch) -> Output:
        """Call the function."""
        result = self.function(engine, batch)
        return result if isinstance(result, Output) else as_output(self, result)


def as_step(step: Any) -> Step:
    """Return the step of a run: a `Step`, a function made into one, or the default."""
    if step is None:
        return Step()
    if isinstance(step, Step):
        return step
    if isinstance(step, tuple | list):
        names = ", ".join(step_name(one) for one in step)
        raise ValueError(
            f"got {len(step)} steps ({names}), expected exactly one: combine them in one Step"
        )
    if isinstance(step, type) or not callable(step):
        what = f"the class {step.__name__}" if isinstance(step, type) else f"a {step_name(step)}"
        raise TypeError(
            f"step is {what}, expected a Step object or a function (engine, batch) -> loss"
        )
    _check_signature(step)
    return FunctionStep(step)


def _check_signature(function: Callable[..., Any]) -> None:
    """Check that a function can be called with an engine and a batch, where Python knows it."""
    target = function.forward if isinstance(function, nn.Module) else function
    try:
        signature = inspect.signature(target)
    except (TypeError, ValueError):  # built in
        return
    try:
        signature.bind(None, None)
    except TypeError as error:
        raise TypeError(
            f"step is {step_name(function)}{signature}, expected a function (engine, batch) -> "
            f"loss ({error})"
        ) from None


def as_output(step: Step, result: Any, part: str = "forward") -> Output:
    """Return what a forward returned as an `Output`: from a loss, or a dict with "loss"."""
    if isinstance(result, Output):
        return result
    if isinstance(result, dict) and "loss" in result:
        return _output_from_dict(step, result)
    loss, losses = find_loss(result)
    if loss is None:
        raise ValueError(
            f"{step_name(step)}.{part} returned a {type(result).__name__} without a loss: "
            "expected a loss, an Output, or a dict with 'loss'"
        )
    return Output(loss, scalars=losses)


def check_first_output(step: Step, run: Run, output: Output) -> None:
    """Check that the first loss can be trained on, before anything changes."""
    loss, criterion = output.loss, run.engine.given_criterion
    if not isinstance(loss, Tensor):
        raise TypeError(
            f"{step_name(step)}.forward returned a loss of type {type(loss).__name__}, expected a "
            "tensor: leave out .item()"
        )
    if loss.numel() != 1:
        raise ValueError(
            f"the loss is {describe(loss)}, expected one number: reduce it with .mean()"
        )
    if not loss.requires_grad:
        raise ValueError(
            "the loss does not depend on any trainable parameter: it was detached, or computed "
            "without gradients"
        )
    problem = target_error(criterion, output.outputs, output.targets)
    if problem is not None and "forward" not in step.owns:
        raise ValueError(f"criterion {type(criterion).__name__} got {problem}")
    if run.step == 0 and output.weight != 0 and not bool(isfinite(loss.detach())):
        raise NonFiniteError(
            f"the first loss is {float(loss.detach())}, before any update: check the inputs, "
            f"{describe(run.batches[0])}, for NaN, and the loss for a log or a division"
        )


def _output_from_dict(step: Step, result: dict[str, Any]) -> Output:
    rest = dict(result)
    loss = rest.pop("loss")
    outputs = rest.pop("outputs", rest.pop("logits", None))
    targets, weight = rest.pop("targets", None), rest.pop("weight", None)
    for name, value in rest.items():
        is_number = isinstance(value, float | int) or (
            isinstance(value, Tensor) and value.numel() == 1
        )
        if not is_number:
            raise ValueError(
                f"{step_name(step)}.forward returned {name!r}, {describe(value)}: apart from "
                "'loss', 'outputs', 'targets' and 'weight', a dict holds only numbers to log"
            )
    return Output(loss, outputs, targets, weight, rest)


def step_name(step: Any) -> str:
    """Return the name of a step or of its function."""
    return str(getattr(step, "__name__", type(step).__name__))


def _no_loss(step: Step, engine: Engine, output: Output) -> str:
    if "forward" in step.owns:
        return f"{step_name(step)}.forward returned an Output without a 'loss': set Output(loss=…)"
    model = type(engine.model).__name__
    return (
        f"the engine has no criterion and {model} returned a {type(output.outputs).__name__} "
        "without a loss: pass a criterion to Engine, or let the model return a scalar, a dict of "
        "losses or an object with .loss"
    )


def resolve_step(step: Any, schedule: Schedule | None) -> Step:
    """Return the step of a run with its schedule."""
    resolved = as_step(step)
    if schedule is not None:
        if "train" in resolved.owns:
            raise ValueError(
                f"{step_name(resolved)}.train and {type(schedule).__name__} both order the "
                "micro-batches of a step: leave one of them out"
            )
        if not hasattr(schedule, "run"):
            raise TypeError(
                f"schedule is {schedule!r}, expected a Schedule such as PlainSchedule()"
            )
        resolved.schedule = schedule
    return resolved


def as_val_output(step: Step, result: Any) -> Output:
    """Return what a validation forward returned as an `Output` with a loss or outputs."""
    output = result if isinstance(result, Output) else as_output(step, result, "val_forward")
    if output.loss is None and output.outputs is None:
        raise ValueError(
            f"{step_name(step)}.val_forward returned an Output with neither 'loss' nor 'outputs': "
            "set Output(loss=…) or Output(outputs=…)"
        )
    return output
