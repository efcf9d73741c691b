"""`Step`: what one update means."""

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Any, ClassVar, Protocol

from torch import Tensor, isfinite

from stoker.core.errors import NonFiniteError
from stoker.core.tree import describe
from stoker.core.types import Batch, Output
from stoker.engine import Engine, PlainSchedule, Schedule
from stoker.engine.batch import (
    call,
    fault_of_targets,
    find_loss,
    self_judged,
    split,
    supervised,
)
from stoker.run import Run


class Points(Protocol):
    """The hook points of a run, as a step fires them."""

    @property
    def calls(self) -> Mapping[str, Collection[object]]:
        """By point, what is called there; empty for a point that no hook uses."""
        ...

    def fire(self, point: str) -> None:
        """Call the hooks of a point."""
        ...


class _NoPoints:
    """No hooks: a step outside of a trainer."""

    calls: Mapping[str, Collection[object]] = defaultdict(tuple)

    def fire(self, point: str) -> None:
        """Call nothing."""


class Step:
    """What one update means. A run has exactly one; override the whole of it, or a part.

        train                      the whole: one update out of run.batches
            zero_grad
            per micro-batch:  forward → after_forward → backward
            before_update
            update                 unscale, clip, optimizer
            adjust_lr              after every update, or once per epoch (engine.lr_step)
        val_forward                one validation batch; forward unless overridden
        predict                    one batch of a prediction

    The parts as they stand read batches like this: a tensor, a pair ``(inputs, targets)`` where
    inputs may be a tensor, a tuple or a dict, or a dict alone. With a criterion the loss is
    ``criterion(model(inputs), targets)``; without one the model returns its own loss.
    """

    schedule: Schedule = PlainSchedule()
    """The order of micro-batches. The trainer sets it where one is given."""

    points: Points = _NoPoints()
    """The hook points. The trainer sets them when a task begins."""

    _checked = False

    owns: ClassVar[frozenset[str]] = frozenset()
    """The parts that a subclass has overridden."""

    def __init_subclass__(cls) -> None:
        parts = ("forward", "val_forward", "predict", "backward", "update", "adjust_lr", "train")
        cls.owns = frozenset(p for p in parts if getattr(cls, p) is not getattr(Step, p))

    def begin(self, points: Points) -> None:
        """Begin a task with these hook points; the trainer calls it."""
        self.points, self._checked = points, False

    def forward(self, engine: Engine, batch: Batch) -> Output:
        """One training batch through model and loss."""
        if engine.criterion is None:
            return self_judged(engine, batch)
        return supervised(engine, batch)

    def val_forward(self, engine: Engine, batch: Batch) -> Output:
        """One validation batch; gradients are off and the model is in evaluation mode."""
        return self.forward(engine, batch)

    def predict(self, engine: Engine, batch: Batch) -> Any:
        """What the model returns for one batch, whose targets are left out."""
        return call(engine, split(batch)[0])

    def backward(self, engine: Engine, loss: Tensor) -> None:
        """The gradients of one micro-batch, added to those of the step."""
        engine.backward(loss)

    def update(self, engine: Engine) -> bool | None:
        """Change the parameters; False says that nothing was changed, which is then no step."""
        return engine.update()

    def adjust_lr(self, engine: Engine, run: Run) -> None:
        """Set the learning rate for the next update (or epoch)."""
        engine.adjust_lr()

    def train(self, run: Run) -> bool | None:
        """One update out of ``run.batches``; False says that there was none.

        An override calls ``run.add_output(Output(…))`` to show hooks a loss, and
        ``self.points.fire("before_update")`` to let them act before the update.
        """
        engine = run.engine
        engine.zero_grad()
        forward = engine.precision.cast(self.forward)
        backward = partial(self.backward, engine) if "backward" in self.owns else engine.backward
        self.schedule.run(
            engine,
            run.batches,
            run.sizes,
            run.expected,
            forward,
            backward,
            partial(self._took, run),
        )
        if engine.scaler is not None:
            engine.unscale()
        if self.points.calls["before_update"]:
            self.points.fire("before_update")
        if run.skip_reason is not None:
            engine.skip_update()
            return False
        moves = engine.lr_moves
        if self.update(engine) is False:
            return False
        if engine.lr_step == "step" and engine.lr_moves == moves:  # engine.step() moves it itself
            self.adjust_lr(engine, run)
        return True

    def _took(self, run: Run, result: Any, size: int | None = None) -> Output:
        """What `forward` returned, made sure to have a loss, shown to the hooks."""
        output: Output = result if result.__class__ is Output else as_output(self, result)
        if output.loss is None:
            raise ValueError(_no_loss(self, run.engine, output))
        if not self._checked:
            check_first_output(self, run, output)
            self._checked = True
        run.add_output(output, size)
        if self.points.calls["after_forward"]:
            self.points.fire("after_forward")
        return output


class FunctionStep(Step):
    """A step whose forward is a plain function ``(engine, batch) -> loss | Output | dict``."""

    def __init__(self, function: Callable[[Engine, Batch], Any]) -> None:
        self.function = function
        self.__name__ = getattr(function, "__name__", type(function).__name__)

    def forward(self, engine: Engine, batch: Batch) -> Output:
        """What the function made of the batch."""
        result = self.function(engine, batch)
        return result if isinstance(result, Output) else as_output(self, result)


def as_step(step: Any) -> Step:
    """The one owner of a run: a `Step`, a plain function made into one, or the default."""
    if step is None:
        return Step()
    if isinstance(step, Step):
        return step
    if isinstance(step, tuple | list):
        names = ", ".join(owner_name(one) for one in step)
        raise ValueError(
            f"{len(step)} owners of the step were given ({names}), expected exactly one: "
            "put what they do into one Step"
        )
    if isinstance(step, type) or not callable(step):
        what = f"the class {step.__name__}" if isinstance(step, type) else f"a {owner_name(step)}"
        raise TypeError(
            f"step is {what}, expected a Step object or a function (engine, batch) -> loss"
        )
    return FunctionStep(step)


def as_output(step: Step, result: Any, part: str = "forward") -> Output:
    """What a forward returned, as an `Output`: from a loss, or a dict with "loss"."""
    if isinstance(result, Output):
        return result
    if isinstance(result, dict) and "loss" in result:
        return _output_from_dict(step, result)
    loss, losses = find_loss(result)
    if loss is None:
        raise ValueError(
            f"{owner_name(step)}.{part} returned a {type(result).__name__} without a loss: "
            "expected a loss, an Output, or a dict with 'loss'"
        )
    return Output(loss, scalars=losses)


def check_first_output(step: Step, run: Run, output: Output) -> None:
    """Refuse a loss that cannot be trained on, before anything is changed."""
    loss, criterion = output.loss, run.engine.given_criterion
    if not isinstance(loss, Tensor):
        raise TypeError(
            f"{owner_name(step)}.forward gave a loss of type {type(loss).__name__}, expected a "
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
    fault = fault_of_targets(criterion, output.outputs, output.targets)
    if fault is not None and "forward" not in step.owns:
        raise ValueError(f"criterion {type(criterion).__name__} got {fault}")
    if run.step == 0 and output.weight != 0 and not bool(isfinite(loss.detach())):
        raise NonFiniteError(
            f"the first loss is {float(loss.detach())}, before any update: look for NaN in the "
            f"inputs, {describe(run.batches[0])}, and for a log or division in the loss"
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
                f"{owner_name(step)}.forward returned {name!r}, {describe(value)}: beside 'loss', "
                "'outputs', 'targets' and 'weight' a dict holds numbers to log"
            )
    return Output(loss, outputs, targets, weight, rest)


def owner_name(step: Any) -> str:
    """The owner as its author calls it."""
    return str(getattr(step, "__name__", type(step).__name__))


def _no_loss(step: Step, engine: Engine, output: Output) -> str:
    if "forward" in step.owns:
        return (
            f"{owner_name(step)}.forward returned an Output whose 'loss' is missing: "
            "set Output(loss=…)"
        )
    model = type(engine.model).__name__
    return (
        f"the engine has no criterion and {model} returned a {type(output.outputs).__name__} "
        "without a loss: give Engine a criterion, or let the model return a scalar, a dict of "
        "losses or an object with .loss"
    )


def owner_of(step: Any, schedule: Schedule | None) -> Step:
    """The one owner of the step, with its schedule."""
    owner = as_step(step)
    if schedule is not None:
        if "train" in owner.owns:
            raise ValueError(
                f"{owner_name(owner)}.train and {type(schedule).__name__} both order the "
                "micro-batches of a step: leave one out"
            )
        if not hasattr(schedule, "run"):
            raise TypeError(f"schedule is {schedule!r}, expected one such as PlainSchedule()")
        owner.schedule = schedule
    return owner


def compute_loss(step: Step, result: Any) -> Output:
    """What a validation forward returned, as an `Output` that has something to judge."""
    output = result if isinstance(result, Output) else as_output(step, result, "val_forward")
    if output.loss is None and output.outputs is None:
        raise ValueError(
            f"{owner_name(step)}.val_forward returned an Output with neither 'loss' nor 'outputs': "
            "set Output(loss=…) or Output(outputs=…)"
        )
    return output
