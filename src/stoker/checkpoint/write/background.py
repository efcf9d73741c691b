"""A background thread that writes one checkpoint at a time.

It is a thread rather than a process: `benchmarks/checkpoint.py` measures both, and training steps
slow down equally, by about a tenth while 1.2 GB are written. What matters is how often the thread
needs the GIL. Blocks of 4 MB needed it a thousand times, and steps were 1.5 times as long; now one
call outside of the GIL hashes a file and one writes it. A thread also needs no shared memory, and
its end is noticed immediately.
"""

import threading
from collections.abc import Callable


class Background:
    """Runs at most one job at a time; the error of a job is raised by the next call."""

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self.error: BaseException | None = None

    @property
    def busy(self) -> bool:
        """Whether a job is running."""
        return self._thread is not None and self._thread.is_alive()

    def start(self, job: Callable[[], None]) -> None:
        """Start a job, after waiting for the previous one."""
        self.wait()
        # not a daemon thread: a program that exits still finishes its last save
        self._thread = threading.Thread(target=self._run, args=(job,), name="stoker-checkpoint")
        self._thread.start()

    def wait(self) -> None:
        """Wait for the job, and raise its error if it failed."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        self.check()

    def check(self) -> None:
        """Raise the error of a job that has failed; never wait."""
        if self.error is not None and not self.busy:
            error, self.error = self.error, None
            raise error

    def _run(self, job: Callable[[], None]) -> None:
        try:
            job()
        except BaseException as error:  # every error has to reach the caller's thread
            self.error = error
