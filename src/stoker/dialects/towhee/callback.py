"""Callbacks, and the flags by which they control training."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, TypeAlias

from stoker import Hook, hooks
from stoker.core import dist
from stoker.core.errors import did_you_mean
from stoker.events import TensorBoard
from stoker.hooks.base.monitor import Mode

Logs: TypeAlias = dict[str, Any]

_KNOWN = ("epoch_loss", "epoch_metric", "step_loss", "eval_epoch_loss", "eval_epoch_metric")


@dataclass
class TrainerControl:
    """Requests of callbacks, which are carried out after the current batch or epoch."""

    should_training_stop: bool = False
    should_epoch_stop: bool = False
    should_save: bool = False
    should_evaluate: bool = False
    should_log: bool = False
    reason: str = "requested by a callback"

    def reset(self) -> None:
        """Clear all requests, as at the start of every epoch."""
        for one in fields(self):
            setattr(self, one.name, one.default)


class Callback:
    """Code at points of training. Override the methods you need.

        on_train_begin
          on_epoch_begin
            on_train_batch_begin → on_batch_begin   …   on_train_batch_end → on_batch_end
            on_eval_begin
              on_eval_batch_begin → on_batch_begin   …   on_eval_batch_end → on_batch_end
            on_eval_end
          on_epoch_end
        on_train_end

    ``logs`` is one dict for the entire training: epoch, global_step, eval_global_step, lr,
    step_loss, epoch_loss, epoch_metric, and eval_step_loss, eval_epoch_loss, eval_epoch_metric.
    With ``state_dict`` and ``load_state_dict`` the state of a callback is restored on resume.
    """

    reads_every = 1
    """How often, in steps, the callback reads the numbers of a training batch; 0 for never."""

    def hook(self, output_dir: Path) -> Hook | None:
        """Return a Stoker hook that implements the callback, or None."""
        return None

    def log_now(self, logs: Logs) -> None:
        """Show the numbers of the step now, on request of a callback."""

    def on_batch_begin(self, batch: Any, logs: Logs) -> None:
        """Run before a batch of training or evaluation."""

    def on_batch_end(self, batch: Any, logs: Logs) -> None:
        """Run after a batch of training or evaluation."""

    def on_epoch_begin(self, epochs: int, logs: Logs) -> None:
        """Run before an epoch; the first is 1."""

    def on_epoch_end(self, epochs: int, logs: Logs) -> None:
        """Run after an epoch and its evaluation."""

    def on_train_begin(self, logs: Logs) -> None:
        """Run before training."""

    def on_train_end(self, logs: Logs) -> None:
        """Run after training."""

    def on_train_batch_begin(self, batch: Any, logs: Logs) -> None:
        """Run before a training batch."""
        self.on_batch_begin(batch, logs)

    def on_train_batch_end(self, batch: Any, logs: Logs) -> None:
        """Run after a training batch."""
        self.on_batch_end(batch, logs)

    on_eval_batch_begin, on_eval_batch_end = on_train_batch_begin, on_train_batch_end

    def on_eval_begin(self, logs: Logs) -> None:
        """Run before an evaluation."""

    def on_eval_end(self, logs: Logs) -> None:
        """Run after an evaluation; its results are in the logs."""


class CallbackList:
    """Callbacks in order of addition."""

    def __init__(self) -> None:
        self._callbacks: list[Callback] = []

    def __iter__(self) -> Iterator[Callback]:
        return iter(self._callbacks)

    def __len__(self) -> int:
        return len(self._callbacks)

    def add_callback(self, callback: Any, singleton: bool = True) -> None:
        """Add a callback; with ``singleton`` it replaces others of its class."""
        if not isinstance(callback, Callback):
            kind = f"the class {callback.__name__}" if isinstance(callback, type) else callback
            raise TypeError(f"{kind} is no Callback, expected an object of a class derived from it")
        if singleton:
            self.pop_callback(callback)
        self._callbacks.append(callback)

    def pop_callback(self, callback: Callback | type[Callback]) -> None:
        """Remove the callbacks of this class."""
        kind = callback if isinstance(callback, type) else type(callback)
        self._callbacks = [c for c in self._callbacks if type(c).__name__ != kind.__name__]


class EarlyStoppingCallback(Callback):
    """Stop training after ``patience`` results without an improvement.

    ``control`` is the trainer's ``trainercontrol``. A value must be better by ``min_delta``, and
    than the ``baseline`` if there is one.
    """

    def __init__(
        self,
        control: TrainerControl,
        monitor: str,
        min_delta: float = 0,
        patience: int = 0,
        mode: Mode = "max",
        baseline: float | None = None,
    ) -> None:
        self.control, self.monitor = control, monitor
        self._early_stopping = hooks.EarlyStopping(
            monitor, patience=max(1, patience), min_delta=min_delta, mode=mode, baseline=baseline
        )
        self.state_dict: Callable[[], dict[str, Any]] = self._early_stopping.state_dict
        self.load_state_dict: Callable[[dict[str, Any]], None] = (
            self._early_stopping.load_state_dict
        )

    def on_eval_end(self, logs: Logs) -> None:
        """Check an evaluation result."""
        if self.monitor not in logs and self.monitor not in _KNOWN:
            near = did_you_mean(self.monitor, logs)
            raise ValueError(f"early stopping monitors {self.monitor!r}, which is not logged{near}")
        if self.monitor.startswith("eval_"):
            self._check(logs)

    def on_epoch_end(self, epochs: int, logs: Logs) -> None:
        """Check a training result."""
        if not self.monitor.startswith("eval_"):
            self._check(logs)

    def _check(self, logs: Logs) -> None:
        reason = (
            self._early_stopping.check(float(logs[self.monitor])) if self.monitor in logs else None
        )
        if reason is not None:
            self.control.should_training_stop, self.control.reason = True, reason


class ModelCheckpointCallback(Callback):
    """Save at multiples of epochs or training batches, as ``epoch_N`` or ``iteration_N``.

    The folder of these is ``filepath``, seen from ``output_dir``; a period of -1 is off.
    """

    reads_every = 0

    def __init__(
        self,
        control: TrainerControl,
        filepath: str = "./",
        every_n_epoch: int = -1,
        every_n_iteration: int = -1,
    ) -> None:
        if (every_n_epoch == -1) == (every_n_iteration == -1):
            raise ValueError(
                f"give every_n_epoch or every_n_iteration, not both, got {every_n_epoch} and "
                f"{every_n_iteration}"
            )
        if max(every_n_epoch, every_n_iteration) < 1:
            raise ValueError("a period of saves is a number from 1")
        self.control, self.filepath = control, filepath
        self.every_n_epoch, self.every_n_iteration = every_n_epoch, every_n_iteration

    def on_train_batch_end(self, batch: Any, logs: Logs) -> None:
        """Request a save when it is due."""
        if self.every_n_iteration > 0 and logs["global_step"] % self.every_n_iteration == 0:
            self.control.should_save = True

    def on_epoch_end(self, epochs: int, logs: Logs) -> None:
        """Request a save when it is due."""
        if self.every_n_epoch > 0 and epochs % self.every_n_epoch == 0:
            self.control.should_save = True


class TensorBoardCallBack(Callback):
    """Write the numbers of every step and evaluation to TensorBoard.

    Without a ``log_dir`` it is ``runs/`` and the name of ``output_dir``, with the comment behind.
    """

    def __init__(self, log_dir: str | None = None, comment: str = "") -> None:
        self.log_dir, self.comment = log_dir, comment

    def hook(self, output_dir: Path) -> Hook:
        """Return a `Write` hook for every step."""
        usual = Path("runs") / f"{output_dir.resolve().name}{self.comment}"
        return hooks.Write(TensorBoard(self.log_dir or usual), every=1)


class PrintCallBack(Callback):
    """Print a line every ``step_frequency`` steps of training and evaluation."""

    def __init__(self, total_epoch_num: int, step_frequency: int = 16) -> None:
        self.total_epoch_num = total_epoch_num
        self.reads_every = step_frequency

    def on_train_batch_end(self, batch: Any, logs: Logs) -> None:
        """Print a line of training."""
        if logs["global_step"] % self.reads_every == 0:
            self.log_now(logs)

    def on_eval_batch_end(self, batch: Any, logs: Logs) -> None:
        """Print a line of evaluation."""
        if logs["eval_global_step"] % self.reads_every == 0:
            self._line(logs, "eval_global_step", "eval_epoch_loss", "eval_epoch_metric")

    def log_now(self, logs: Logs) -> None:
        """Print a line of training."""
        self._line(logs, "global_step", "epoch_loss", "epoch_metric")

    def _line(self, logs: Logs, *names: str) -> None:
        shown = [f"{name}={_plain(logs[name])}" for name in names if name in logs]
        if dist.is_main():
            print(", ".join([f"epoch={logs['epoch']}/{self.total_epoch_num}", *shown]), flush=True)


class ProgressBarCallBack(Callback):
    """Show a progress bar instead of lines."""

    def __init__(self, total_epoch_num: int, train_dataloader: Any = None) -> None:
        self.total_epoch_num, self.train_dataloader = total_epoch_num, train_dataloader

    def hook(self, output_dir: Path) -> Hook:
        """Return Stoker's progress bar."""
        return hooks.Progress()


def _plain(value: Any) -> Any:
    return value.item() if hasattr(value, "item") else value
