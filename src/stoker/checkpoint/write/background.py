"""One job beside the training, in a thread.

A thread, not a process: `benchmarks/checkpoint.py` measures both, and steps are slowed down alike,
by about a tenth of their time while 1.2 GB are written. What matters is how often the job needs
Python's lock. In blocks of 4 MB it asked for it a thousand times and steps took half as long again;
now each file is summed and written by one call, outside of the lock. A thread needs no shared
memory, and its end is seen at once.
"""

import threading
from collections.abc import Callable


class Background:
    """Runs at most one job at a time; the error of a job is raised at the next call."""

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self.error: BaseException | None = None

    @property
    def busy(self) -> bool:
        """Whether a job runs."""
        return self._thread is not None and self._thread.is_alive()

    def start(self, job: Callable[[], None]) -> None:
        """Run a job, after the one that may still run."""
        self.wait()
        # no daemon: a program that comes to its end still finishes what it saves
        self._thread = threading.Thread(target=self._run, args=(job,), name="stoker-checkpoint")
        self._thread.start()

    def wait(self) -> None:
        """Wait for the job, and raise its error if it had one."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        self.check()

    def check(self) -> None:
        """Raise the error of a job that has ended in one; never waits."""
        if self.error is not None and not self.busy:
            error, self.error = self.error, None
            raise error

    def _run(self, job: Callable[[], None]) -> None:
        try:
            job()
        except BaseException as error:  # every one has to reach the caller's thread
            self.error = error
