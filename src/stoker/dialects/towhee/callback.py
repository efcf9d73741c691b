"""Callbacks, and the flags by which they control training."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, fields
from functools import partialmethod
from pathlib import Path
from typing import Any, TypeAlias

from stoker import Hook, hooks
from stoker.core import dist
from stoker.core.errors import did_you_mean
from stoker.dialects.towhee.metrics import as_number
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

    model: Any = None
    optimizer: Any = None
    trainercontrol: Any = None

    def _set(self, name: str, value: Any) -> None:
        setattr(self, name, value)

    set_model = partialmethod(_set, "model")
    set_optimizer = partialmethod(_set, "optimizer")
    set_trainercontrol = partialmethod(_set, "trainercontrol")

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


POINTS = [name for name in vars(Callback) if name.startswith("on_")]
"""The points at which callbacks are called."""


class CallbackList:
    """Callbacks in order of addition; each point calls all of them."""

    def __init__(self, callbacks: Iterable[Callback] | None = None) -> None:
        self.callbacks: list[Callback] = []
        for one in callbacks or ():
            self.add_callback(one, singleton=False)

    def __iter__(self) -> Iterator[Callback]:
        return iter(self.callbacks)

    def __len__(self) -> int:
        return len(self.callbacks)

    def __getitem__(self, index: int) -> Callback:
        return self.callbacks[index]

    def __repr__(self) -> str:
        return f"CallbackList({self.callbacks!r})"

    def __getattr__(self, name: str) -> Any:
        if not name.startswith(("on_", "set_")) or not hasattr(Callback, name):
            raise AttributeError(f"a CallbackList has no {name!r}{did_you_mean(name, POINTS)}")

        def call(*arguments: Any, **named: Any) -> None:
            for one in self.callbacks:
                getattr(one, name)(*arguments, **named)

        return call

    def add_callback(self, callback: Any, singleton: bool = True) -> None:
        """Add a callback; with ``singleton`` it replaces the first one of its class."""
        if not isinstance(callback, Callback):
            kind = f"the class {callback.__name__}" if isinstance(callback, type) else callback
            raise TypeError(f"{kind} is no Callback, expected an object of a class derived from it")
        same = (one for one in self.callbacks if _class_name(one) == _class_name(callback))
        if singleton and (replaced := next(same, None)) is not None:
            self.pop_callback(replaced)
        self.callbacks.append(callback)

    def pop_callback(self, callback: Callback) -> None:
        """Remove a callback, if it is there."""
        self.callbacks = [one for one in self.callbacks if one is not callback]

    def pop_class(self, callback: Callback) -> None:
        """Remove all callbacks of the class of this one."""
        name = _class_name(callback)
        self.callbacks = [one for one in self.callbacks if _class_name(one) != name]


def _class_name(callback: Callback) -> str:
    return type(callback).__name__


class EarlyStoppingCallback(Callback):
    """Stop after ``patience`` results without an improvement of more than ``min_delta``.

    Results of evaluations are checked after each of them, others after each epoch.
    """

    def __init__(
        self,
        trainercontrol: TrainerControl,
        monitor: str,
        min_delta: float = 0,
        patience: int = 0,
        mode: Mode = "max",
        baseline: float | None = None,
    ) -> None:
        self.trainercontrol, self.monitor = trainercontrol, monitor
        self.patience, self.baseline = patience, baseline
        self._early_stopping = hooks.EarlyStopping(
            monitor,
            patience=max(1, patience),
            min_delta=abs(min_delta),
            mode=mode,
            baseline=baseline,
        )
        self.state_dict: Callable[[], dict[str, Any]] = self._early_stopping.state_dict
        self.load_state_dict: Callable[[dict[str, Any]], None] = (
            self._early_stopping.load_state_dict
        )

    def get_monitor_value(self, logs: Logs) -> Any:
        """Return the result to check, or None if there is none yet; override it for another."""
        return logs.get(self.monitor)

    def on_eval_end(self, logs: Logs) -> None:
        """Check an evaluation result."""
        if self.monitor not in _KNOWN and self.get_monitor_value(logs) is None:
            near = did_you_mean(self.monitor, logs)
            raise ValueError(f"early stopping monitors {self.monitor!r}, which is not logged{near}")
        if self.monitor.startswith("eval_"):
            self._check(logs)

    def on_epoch_end(self, epochs: int, logs: Logs) -> None:
        """Check a training result."""
        if not self.monitor.startswith("eval_"):
            self._check(logs)

    def _check(self, logs: Logs) -> None:
        value = self.get_monitor_value(logs)
        reason = None if value is None else self._early_stopping.check(float(value))
        if reason is not None:
            self.trainercontrol.should_training_stop = True
            self.trainercontrol.reason = reason


class ModelCheckpointCallback(Callback):
    """Save at multiples of epochs or training batches, as ``epoch_N`` or ``iteration_N``.

    The folder of these is ``filepath``, seen from ``output_dir``; a period of -1 is off.
    """

    reads_every = 0

    def __init__(
        self,
        trainercontrol: TrainerControl,
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
        self.trainercontrol, self.filepath = trainercontrol, filepath
        self.every_n_epoch, self.every_n_iteration = every_n_epoch, every_n_iteration
        self.n_iteration = 0

    def on_batch_end(self, batch: Any, logs: Logs | None = None) -> None:
        """Request a save when it is due; without logs, the batches are counted here."""
        number = logs["global_step"] if logs else self.n_iteration
        self.n_iteration += 1
        if self.every_n_iteration > 0:
            self._request(number % self.every_n_iteration == 0, logs)

    def on_eval_batch_end(self, batch: Any, logs: Logs | None = None) -> None:
        """Count no batches of an evaluation."""

    def on_epoch_end(self, epochs: int, logs: Logs | None = None) -> None:
        """Request a save when it is due."""
        if self.every_n_epoch > 0:
            self._request(epochs % self.every_n_epoch == 0, logs)

    def _request(self, due: bool, logs: Logs | None) -> None:
        if due or not logs:  # without a trainer, nobody else withdraws the last request
            self.trainercontrol.should_save = due


class TensorBoardCallBack(Callback):
    """Write the numbers of every step and evaluation to TensorBoard.

    Args:
        summary_writer_constructor: Makes the writer, such as ``SummaryWriter``; by default it is
            Stoker's, for which the x axis is the training step, also in evaluations.
        log_dir: The folder; by default ``runs/`` and the name of ``output_dir``.
        comment: Appended to the default folder.
    """

    def __init__(
        self,
        summary_writer_constructor: Callable[..., Any] | None = None,
        log_dir: str | None = None,
        comment: str = "",
    ) -> None:
        self.log_dir, self.comment = log_dir, comment
        self.tb_writer: Any = None
        if summary_writer_constructor is not None:
            self.tb_writer = summary_writer_constructor(log_dir, comment=comment)
        self.reads_every = 1 if self.tb_writer is not None else 0

    def hook(self, output_dir: Path) -> Hook | None:
        """Return a `Write` hook for every step, unless there is a writer."""
        if self.tb_writer is not None:
            return None
        usual = Path("runs") / f"{output_dir.resolve().name}{self.comment}"
        return hooks.Write(TensorBoard(self.log_dir or usual), every=1)

    def on_train_batch_end(self, batch: Any, logs: Logs) -> None:
        """Give the numbers of a training batch to the writer."""
        self._write(logs, "global_step", "lr", "epoch_loss", "step_loss", "epoch_metric")

    def on_eval_batch_end(self, batch: Any, logs: Logs) -> None:
        """Give the numbers of an evaluation batch to the writer."""
        self._write(
            logs, "eval_global_step", "eval_step_loss", "eval_epoch_loss", "eval_epoch_metric"
        )

    def _write(self, logs: Logs, step: str, *names: str) -> None:
        if self.tb_writer is not None and dist.is_main():
            for name in names:
                if name in logs:
                    self.tb_writer.add_scalar(name, as_number(logs[name]), logs[step])


class PrintCallBack(Callback):
    """Print a line every ``step_frequency`` steps of training and evaluation."""

    def __init__(self, total_epoch_num: int, step_frequency: int = 16) -> None:
        self.total_epoch_num, self.step_frequency = total_epoch_num, step_frequency
        self.reads_every = step_frequency

    def on_train_batch_end(self, batch: Any, logs: Logs) -> None:
        """Print a line of training."""
        if logs["global_step"] % self.step_frequency == 0:
            self.log_now(logs)

    def on_eval_batch_end(self, batch: Any, logs: Logs) -> None:
        """Print a line of evaluation."""
        if logs["eval_global_step"] % self.step_frequency == 0:
            self._line(logs, "eval_global_step", "eval_epoch_loss", "eval_epoch_metric")

    def log_now(self, logs: Logs) -> None:
        """Print a line of training."""
        self._line(logs, "global_step", "epoch_loss", "epoch_metric")

    def _line(self, logs: Logs, *names: str) -> None:
        shown = [f"{name}={as_number(logs[name])}" for name in names if name in logs]
        if dist.is_main():
            print(", ".join([f"epoch={logs['epoch']}/{self.total_epoch_num}", *shown]), flush=True)


class ProgressBarCallBack(Callback):
    """Show a progress bar instead of lines."""

    def __init__(self, total_epoch_num: int, train_dataloader: Any = None) -> None:
        self.total_epoch_num, self.train_dataloader = total_epoch_num, train_dataloader

    def hook(self, output_dir: Path) -> Hook:
        """Return Stoker's progress bar."""
        return hooks.Progress()
