"""Call the callbacks of Towhee, provide its logs, and carry out requests, from a Stoker run."""

from collections.abc import Callable
from functools import partial
from typing import Any

from torch import Tensor

from stoker import Hook, Priority, Run
from stoker.dialects.adapter import Adapter, overridden
from stoker.dialects.towhee.callback import Callback, CallbackList, TrainerControl
from stoker.dialects.towhee.overrides import is_user_evaluation
from stoker.dialects.towhee.results import PassResults

PLACES = {
    "on_train_begin": "before_train", "on_train_end": "after_train",
    "on_epoch_begin": "before_epoch", "on_epoch_end": "after_epoch",
    "on_train_batch_begin": "before_step", "on_train_batch_end": "after_step",
    "on_eval_begin": "before_val", "on_eval_end": "after_val",
    "on_eval_batch_begin": "before_val_step", "on_eval_batch_end": "after_val_step",
}  # fmt: skip
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
        return lambda run: None if is_user_evaluation(run) else method(run.batches[0], logs)
    if point.startswith("on_eval"):
        return lambda run: None if is_user_evaluation(run) else method(logs)
    if point.startswith("on_epoch"):
        return lambda run: method(run.current_epoch, logs)
    return lambda run: method(logs)


class LogsHook(Hook):
    """Update the logs before the callbacks are called.

    Args:
        callbacks: The callbacks, which decide how often numbers are computed.
        control: The requests of callbacks, which are cleared when an epoch begins.
        train: The results of training.
        evaluation: The results of the evaluation in progress, or of the last one.
        notify: Called with the epoch and the logs whenever an epoch starts or ends.
    """

    priority = Priority.NORMAL - 1
    same_on_all_ranks = True

    def __init__(
        self,
        callbacks: CallbackList,
        control: TrainerControl,
        train: PassResults,
        evaluation: PassResults,
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
        if is_user_evaluation(run):
            return
        if self.evaluation.given is None:
            self.evaluation.add(run, run.outputs[-1], run.sizes[0])
        if self._is_read:
            self.logs |= self.evaluation.values()

    def after_val(self, run: Run) -> None:
        """Record the results under the names of Towhee and of Stoker."""
        self.evaluating = False
        self.logs |= self.evaluation.values()
        for own in ("loss", "metric"):
            if (value := _as_number(self.logs.get(f"eval_epoch_{own}"))) is not None:
                run.metrics[f"{run.val_name}/{own}"] = value
                run.events.put_scalar(f"eval_epoch_{own}", value, smoothing_hint=False)

    def after_train_epoch(self, run: Run) -> None:
        """Record the results of the epoch."""
        self.fill()
        for own in ("loss", "metric"):
            if (value := _as_number(self.logs.get(f"epoch_{own}"))) is not None:
                run.metrics[f"train/{own}"] = value

    def after_epoch(self, run: Run) -> None:
        """Report the end of the epoch."""
        self._notify(run.current_epoch, self.logs)

    def on_exception(self, run: Run) -> None:
        """Leave an evaluation that failed."""
        self.evaluating = False

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


class RequestHook(Hook):
    """Carry out the requests of callbacks, after they were called."""

    priority = Priority.NORMAL + 1

    def __init__(self, callbacks: CallbackList, control: TrainerControl, logs: LogsHook) -> None:
        self._callbacks, self._control, self._logs = callbacks, control, logs
        self.same_on_all_ranks = all(adapted(one, "", {}).same_on_all_ranks for one in callbacks)

    def after_val_step(self, run: Run) -> None:
        """Count an evaluation batch after the callbacks."""
        self._logs.logs["eval_global_step"] += not is_user_evaluation(run)

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
            self._logs.fill()
            run.request("log")
            for one in self._callbacks:
                one.log_now(self._logs.logs)
        control.should_epoch_stop = control.should_save = False
        control.should_evaluate = control.should_log = False

    before_epoch = after_epoch = after_step

    def _stop(self, run: Run) -> None:
        if self._control.should_training_stop:
            run.stop(self._control.reason)


def _as_number(value: Any) -> float | None:
    if isinstance(value, Tensor):
        return float(value.detach()) if value.numel() == 1 else None
    return value if isinstance(value, float | int) else None
