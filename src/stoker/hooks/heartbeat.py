"""`Heartbeat`: end a process that hangs."""

import faulthandler
import os
import threading
from time import monotonic

from stoker.core import dist
from stoker.hooks.base.hook import Hook, Priority
from stoker.run import Run

HUNG = 75
"""The exit code of a process that hung."""


class Heartbeat(Hook):
    """End a process that makes no progress, so that its launcher can end the job.

    A hanging rank, for example in its data loader, leaves all other ranks waiting. A background
    thread detects it: after ``after`` seconds without progress it prints where the process is and
    the stacks of all threads, and ends the process with exit code 75. A process inside a step may
    be waiting for another rank, so it gets a few extra seconds and the hanging rank reports first.

    Args:
        after: Seconds without progress. Choose more than the longest step, save or data fetch.
    """

    priority = Priority.MEASURE
    same_on_all_ranks = True

    def __init__(self, after: float = 1800.0) -> None:
        if after <= 0:
            raise ValueError(f"after must be a positive number of seconds, got {after}")
        self.after = after
        self._beat: tuple[str, int] = ("", 0)  # a new object at every point
        self._done = threading.Event()

    def before_run(self, run: Run) -> None:
        """Start the watchdog thread."""
        self._beat = ("getting ready at step", run.step)
        self._done = threading.Event()
        threading.Thread(target=self._watch, args=(self._done,), daemon=True).start()

    def after_run(self, run: Run) -> None:
        """Stop the watchdog thread."""
        self._done.set()

    def before_epoch(self, run: Run) -> None:
        """Expect the first batch."""
        self._beat = ("fetching data after step", run.step)

    def before_step(self, run: Run) -> None:
        """Expect the end of the step."""
        self._beat = ("in step", run.step + 1)

    def after_step(self, run: Run) -> None:
        """Expect the next batch."""
        self._beat = ("fetching data after step", run.step)

    def after_train_epoch(self, run: Run) -> None:
        """Expect the work at the end of the epoch."""
        self._beat = ("at the end of epoch", run.current_epoch)

    def before_val(self, run: Run) -> None:
        """Expect the first validation batch."""
        self._beat = ("fetching data for the validation after step", run.step)

    def before_val_step(self, run: Run) -> None:
        """Expect the end of the validation batch."""
        self._beat = ("in the validation after step", run.step)

    def after_val_step(self, run: Run) -> None:
        """Expect the next validation batch."""
        self._beat = ("fetching data for the validation after step", run.step)

    def after_val(self, run: Run) -> None:
        """Expect the next training batch."""
        self._beat = ("fetching data after step", run.step)

    def before_predict_step(self, run: Run) -> None:
        """Expect the end of the prediction batch."""
        self._beat = ("in a prediction after step", run.step)

    def after_predict_step(self, run: Run) -> None:
        """Expect the next batch to predict."""
        self._beat = ("fetching data for a prediction after step", run.step)

    def _watch(self, done: threading.Event) -> None:
        last, since = self._beat, monotonic()
        while not done.wait(min(5.0, self.after / 20)):
            if self._beat is not last:
                last, since = self._beat, monotonic()
                continue
            idle = monotonic() - since
            may_wait_for_others = last[0].startswith("in ")
            if idle > self.after + (min(5.0, self.after) if may_wait_for_others else 0.0):
                _end(f"rank {dist.rank()} has made no progress for {idle:.0f} s: it is "
                     f"{last[0]} {last[1]}")  # fmt: skip


def _end(message: str) -> None:
    """Print the message and the stacks without taking any lock, and exit."""
    os.write(2, f"error: {message}; the stacks of its threads:\n".encode())
    faulthandler.dump_traceback(file=2, all_threads=True)
    os._exit(HUNG)
