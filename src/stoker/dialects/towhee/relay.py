"""Call the callbacks of Towhee, and provide its logs, from a Stoker run."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from stoker import Engine, Hook, Output, Priority, Run, Step
from stoker.core.types import Stateful
from stoker.dialects.adapter import Adapter, overridden
from stoker.dialects.towhee.callback import Callback, CallbackList, TrainerControl
from stoker.metrics import Mean

USER_EVALUATION = ["the overridden evaluate"]
"""The only batch of an evaluation by an overridden ``evaluate``."""


class Tally:
    """The mean loss over samples and the metric of one pass.

    ``measure``, an overridden ``compute_metric``, takes a batch and returns the metric so far. The
    prefix is prepended to the names in the logs.
    """

    def __init__(self, prefix: str, metric: Any, measure: Callable[[Any], Any] | None) -> None:
        self.prefix, self.metric, self._measure = prefix, metric, measure
        self.reset()

    def reset(self) -> None:
        """Start a pass."""
        self.mean = Mean()
        self.last: Tensor | float | None = None
        self.measured: Any = None
        self.given: dict[str, Any] | None = None  # the result of an overridden step
        if self.metric is not None:
            self.metric.reset()

    def add(self, run: Run, output: Output, weight: int) -> None:
        """Add one batch."""
        if output.loss is not None and weight:
            summed = getattr(run.engine.given_criterion, "reduction", None) == "sum"
            self.last = output.loss.detach() / weight if summed else output.loss.detach()
            self.mean.update(self.last, weight)
        if self._measure is not None:
            with run.engine.mode(training=False), torch.no_grad():
                self.measured = self._measure(run.engine.place(run.batches[0]))
        elif self.metric is not None and weight and output.outputs is not None:
            outputs = getattr(output.outputs, "logits", output.outputs)
            self.metric.update(outputs.detach(), output.targets)

    def values(self) -> dict[str, Any]:
        """Return the available numbers by their names in the logs."""
        if self.given is not None:
            return self.given
        named = {
            "step_loss": None if self.last is None else float(self.last),
            "epoch_loss": None if self.mean.empty else self.mean.compute(),
            "epoch_metric": self.metric.compute() if self.metric is not None else None,
        }
        if self._measure is not None:
            named["epoch_metric"] = self.measured
        return {f"{self.prefix}{n}": value for n, value in named.items() if value is not None}

    def state_dict(self) -> dict[str, Any]:
        """Return the sums so far."""
        return {
            "mean": self.mean.state_dict(),
            "last": None if self.last is None else float(self.last),
            "metric": self.metric.state_dict() if isinstance(self.metric, Stateful) else {},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the saved state."""
        self.mean.load_state_dict(state["mean"])
        self.last = state["last"]
        if isinstance(self.metric, Stateful):
            self.metric.load_state_dict(state["metric"])


PLACES = {
    "on_train_begin": "before_train",
    "on_epoch_begin": "before_epoch",
    "on_train_batch_begin": "before_step",
    "on_train_batch_end": "after_step",
    "on_eval_begin": "before_val",
    "on_eval_batch_begin": "before_val_step",
    "on_eval_batch_end": "after_val_step",
    "on_eval_end": "after_val",
    "on_epoch_end": "after_epoch",
    "on_train_end": "after_train",
}
"""The points of Towhee and the points of Stoker at which they are called."""


def acts(callback: Callback, point: str) -> list[str]:
    """Return the methods that a callback overrides: the point, and the general one."""
    general = f"on_batch_{point.rpartition('_')[2]}"
    return overridden(callback, Callback, [point, general] if "_batch_" in point else [point])


def adapted(callback: Callback, name: str, logs: dict[str, Any]) -> Adapter:
    """Return an adapter that calls a callback with the logs."""
    ours = type(callback).__module__.startswith(__name__.rpartition(".")[0])
    hook = Adapter(callback, name, same_on_all_ranks=ours)
    for point, place in PLACES.items():
        if own := acts(callback, point):
            hook.place(own[0], place, _call(getattr(callback, point), point, logs))
    return hook


def _call(method: Any, point: str, logs: dict[str, Any]) -> Callable[[Run], None]:
    if point.startswith("on_train_batch"):
        return lambda run: method(run.batches[0], logs)
    if point.startswith("on_eval_batch"):
        return lambda run: None if _is_user_evaluation(run) else method(run.batches[0], logs)
    if point.startswith("on_eval"):
        return lambda run: None if _is_user_evaluation(run) else method(logs)
    if point.startswith("on_epoch"):
        return lambda run: method(run.current_epoch, logs)
    return lambda run: method(logs)


class Relay(Hook):
    """Update the logs before the callbacks are called.

    ``notify`` gets the epoch and the logs whenever an epoch starts or ends.
    """

    priority = Priority.NORMAL - 1
    same_on_all_ranks = True

    def __init__(
        self,
        callbacks: CallbackList,
        control: TrainerControl,
        train: Tally,
        evaluation: Tally,
        notify: Callable[[int, dict[str, Any]], None],
    ) -> None:
        self._control, self._notify = control, notify
        self.train, self.evaluation = train, evaluation
        self.logs: dict[str, Any] = {"global_step": 0, "epoch": 0, "eval_global_step": 0}
        self.evaluating = False
        self._lr = 0.0
        read = [one.reads_every for one in callbacks if acts(one, "on_train_batch_end")]
        self._read = sorted({every for every in read if every})
        self._is_read = any(acts(one, "on_eval_batch_end") for one in callbacks)

    def before_train(self, run: Run) -> None:
        """Register the numbers as gauges."""
        self.logs |= {"global_step": run.step, "epoch": run.epoch}
        self._notify(run.epoch, self.logs)
        run.events.gauge("lr", lambda: self._lr)
        for name in ("step_loss", "epoch_loss", "epoch_metric"):
            run.events.gauge(name, partial(self._number, name))

    def before_epoch(self, run: Run) -> None:
        """Reset the numbers and flags."""
        self._control.reset()
        self.train.reset()
        self.logs["epoch"] = run.current_epoch
        self._notify(run.current_epoch, self.logs)

    def before_step(self, run: Run) -> None:
        """Record the current rate."""
        optimizer = next(iter(run.engine.optimizers.values()))
        self._lr = float(optimizer.param_groups[0].get("lr", 0.0))

    def after_step(self, run: Run) -> None:
        """Update the numbers of the step, and compute them if a callback reads them."""
        if self.train.given is None:
            self.train.add(run, run.outputs[-1], run.sizes[0])
        step = self.logs["global_step"] = run.step
        if any(step % every == 0 for every in self._read):
            self.fill()

    def before_val(self, run: Run) -> None:
        """Start an evaluation."""
        self.evaluating = True
        self.evaluation.reset()

    def after_val_step(self, run: Run) -> None:
        """Add an evaluation batch."""
        if _is_user_evaluation(run):
            return
        if self.evaluation.given is None:
            self.evaluation.add(run, run.outputs[-1], run.sizes[0])
        if self._is_read:
            self.logs |= self.evaluation.values()

    def after_val(self, run: Run) -> None:
        """Record the results under the names of Towhee and of Stoker."""
        self.evaluating = False
        self.logs |= self.evaluation.values()
        for name, own in (("eval_epoch_loss", "loss"), ("eval_epoch_metric", "metric")):
            if (value := _as_number(self.logs.get(name))) is not None:
                run.metrics[f"{run.val_name}/{own}"] = value
                run.events.put_scalar(name, value, smoothing_hint=False)

    def after_train_epoch(self, run: Run) -> None:
        """Record the results of the epoch."""
        self.fill()
        for name, own in (("epoch_loss", "loss"), ("epoch_metric", "metric")):
            if (value := _as_number(self.logs.get(name))) is not None:
                run.metrics[f"train/{own}"] = value

    def after_epoch(self, run: Run) -> None:
        """Report the end of the epoch."""
        self._notify(run.current_epoch, self.logs)

    def fill(self) -> None:
        """Update the logs of training."""
        self.logs |= {"lr": self._lr, **self.train.values()}

    def state_dict(self) -> dict[str, Any]:
        """Return the numbers so far."""
        numbers = {name: _as_number(value) for name, value in self.logs.items()}
        logs = {name: value for name, value in numbers.items() if value is not None}
        return {"lr": self._lr, "train": self.train.state_dict(), "logs": logs}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the saved state."""
        self._lr = state["lr"]
        self.train.load_state_dict(state["train"])
        self.logs |= state["logs"]

    def _number(self, name: str) -> float | None:
        return _as_number(self.train.values().get(name))


class Flags(Hook):
    """Carry out the requests of callbacks, after they were called."""

    priority = Priority.NORMAL + 1

    def __init__(self, callbacks: CallbackList, control: TrainerControl, relay: Relay) -> None:
        self._callbacks, self._control, self._relay = callbacks, control, relay
        self.same_on_all_ranks = all(adapted(one, "", {}).same_on_all_ranks for one in callbacks)

    def after_val_step(self, run: Run) -> None:
        """Count an evaluation batch after the callbacks."""
        self._relay.logs["eval_global_step"] += not _is_user_evaluation(run)

    def after_val(self, run: Run) -> None:
        """Stop if a callback requested it."""
        self._stop(run)

    def after_step(self, run: Run) -> None:
        """Carry out the requests."""
        control = self._control
        self._stop(run)
        if control.should_epoch_stop:
            run.request("end_epoch")
        if control.should_save:
            run.request("save")
        if control.should_evaluate:
            run.request("evaluate")
        if control.should_log:
            self._relay.fill()
            run.request("log")
            for one in self._callbacks:
                one.log_now(self._relay.logs)
        control.should_epoch_stop = control.should_save = False
        control.should_evaluate = control.should_log = False

    before_epoch = after_epoch = after_step

    def _stop(self, run: Run) -> None:
        if self._control.should_training_stop:
            run.stop(self._control.reason)


def _is_user_evaluation(run: Run) -> bool:
    return run.feeder is not None and run.feeder.loader is USER_EVALUATION


def _as_number(value: Any) -> float | None:
    if isinstance(value, Tensor):
        return float(value.detach()) if value.numel() == 1 else None
    return value if isinstance(value, float | int) else None


class OwnedStep(Step):
    """A step that calls the overridden methods of a trainer."""

    def __init__(self, owner: Any) -> None:
        self._owner, self.stands_for = owner, type(owner).__name__

    def train(self, run: Run) -> bool | None:
        """Run an update, or an overridden ``train_step``."""
        owner = self._owner
        if not owner.owns("train_step"):
            return super().train(run)
        given = owner.train_step(owner.shown, run.engine.place(run.batches[0]))
        owner.relay.train.given = given = dict(given or {})
        if not run.outputs:
            loss = given.get("step_loss")
            run.add_output(Output(None if loss is None else torch.as_tensor(loss).detach()))
        return True

    def forward(self, engine: Engine, batch: Any) -> Output:
        """Run a batch, or an overridden ``compute_loss``."""
        owner = self._owner
        if not owner.owns("compute_loss"):
            return super().forward(engine, batch)
        inputs = engine.place(batch)
        loss = owner.compute_loss(owner.shown, inputs)
        return Output(loss, owner.seen, inputs[-1] if isinstance(inputs, tuple | list) else None)

    def val_forward(self, engine: Engine, batch: Any) -> Output:
        """Run an evaluation batch, or an overridden ``evaluate_step`` or ``evaluate``."""
        owner = self._owner
        by_user = batch is USER_EVALUATION[0]
        if not by_user and not owner.owns("evaluate_step"):
            return self.forward(engine, batch)
        if by_user:
            given = owner.evaluate(owner.shown, owner.relay.logs)
        else:
            given = owner.evaluate_step(owner.shown, engine.place(batch))
        owner.relay.evaluation.given = dict(given or {})
        return Output(outputs=given)
