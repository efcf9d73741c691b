"""`Heartbeat`: a process that makes no progress says where it is, and ends."""

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
    """Ends a process that makes no progress, so that its launcher ends the job.

    A process that is stuck, in its data for example, leaves all others waiting for it. A thread
    watches; after ``after`` seconds without progress it says where the process is, shows the
    stacks of all its threads, and ends it with exit code 75. A process that is within a step may
    only be waiting for another: it has a few seconds more, so that the stuck one speaks first.

    Args:
        after: seconds without progress; more than the longest step, save or wait for data takes.
    """

    priority = Priority.MEASURE

    def __init__(self, after: float = 1800.0) -> None:
        if after <= 0:
            raise ValueError(f"after is a number of seconds above 0, got {after}")
        self.after = after
        self._beat: tuple[str, int] = ("", 0)  # a new one at every point
        self._done = threading.Event()

    def before_run(self, run: Run) -> None:
        """Begin to watch."""
        self._beat = ("getting ready at step", run.step)
        self._done = threading.Event()
        threading.Thread(target=self._watch, args=(self._done,), daemon=True).start()

    def after_run(self, run: Run) -> None:
        """Watch no more."""
        self._done.set()

    def before_epoch(self, run: Run) -> None:
        """The first batch is fetched."""
        self._beat = ("fetching data after step", run.step)

    def before_step(self, run: Run) -> None:
        """A step begins."""
        self._beat = ("in step", run.step + 1)

    def after_step(self, run: Run) -> None:
        """The next batch is fetched."""
        self._beat = ("fetching data after step", run.step)

    def after_train_epoch(self, run: Run) -> None:
        """Whatever is due at the end of an epoch comes."""
        self._beat = ("at the end of epoch", run.current_epoch)

    def before_val(self, run: Run) -> None:
        """The first batch of a validation is fetched."""
        self._beat = ("fetching data for the validation after step", run.step)

    def before_val_step(self, run: Run) -> None:
        """A batch is validated."""
        self._beat = ("in the validation after step", run.step)

    def after_val_step(self, run: Run) -> None:
        """The next batch of the validation is fetched."""
        self._beat = ("fetching data for the validation after step", run.step)

    def after_val(self, run: Run) -> None:
        """A validation is over."""
        self._beat = ("fetching data after step", run.step)

    def before_predict_step(self, run: Run) -> None:
        """A batch is predicted."""
        self._beat = ("in a prediction after step", run.step)

    def after_predict_step(self, run: Run) -> None:
        """The next batch to predict is fetched."""
        self._beat = ("fetching data for a prediction after step", run.step)

    def _watch(self, done: threading.Event) -> None:
        last, since = self._beat, monotonic()
        while not done.wait(min(5.0, self.after / 20)):
            if self._beat is not last:
                last, since = self._beat, monotonic()
                continue
            waited = monotonic() - since
            may_wait_for_others = last[0].startswith("in ")
            if waited > self.after + (min(5.0, self.after) if may_wait_for_others else 0.0):
                _end(f"rank {dist.rank()} has made no progress for {waited:.0f} s: it is "
                     f"{last[0]} {last[1]}")  # fmt: skip


def _end(message: str) -> None:
    """Say it past everything that could be stuck, too, and leave."""
    os.write(2, f"error: {message}; the stacks of its threads:\n".encode())
    faulthandler.dump_traceback(file=2, all_threads=True)
    os._exit(HUNG)
