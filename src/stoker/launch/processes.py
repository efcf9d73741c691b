"""The processes of one attempt at a job: started together, watched, and ended for certain."""

import os
import pickle
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import get_context, resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess
from multiprocessing.forkserver import ensure_running
from multiprocessing.reduction import DupFd
from typing import Any

from stoker.launch.rank import FORWARDED, Report, main

_CONTEXT = get_context("forkserver")


@contextmanager
def _signals_held_back() -> Iterator[None]:
    """What is started within it holds signals back: the server always, ranks until they are ready.

    So a signal to the whole process group, from a terminal or a job scheduler, leaves the server
    alone.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, FORWARDED)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def warm_up() -> None:
    """Start the process that ranks are forked from; it imports torch while the caller goes on."""
    _CONTEXT.set_forkserver_preload(["torch.distributed"])
    resource_tracker.ensure_running()  # which lets signals through again where it starts
    with _signals_held_back():
        ensure_running()


class _Streams:
    """The standard output and error of this process, which a rank has for its own."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _take_over, (DupFd(1), DupFd(2))


def _take_over(out: Any, err: Any) -> None:
    os.dup2(out.detach(), 1)
    os.dup2(err.detach(), 2)


@dataclass(frozen=True)
class End:
    """How one process ended. It reported so, unless it was killed or left in the middle."""

    rank: int
    code: int
    """The exit code; of a process that a signal killed, that number below zero."""
    report: Report | None

    @property
    def asked_for(self) -> bool:
        """Whether it ended as it does when a signal asks for it."""
        return self.code in {128 + n for n in FORWARDED} | {-n for n in FORWARDED}

    @property
    def words(self) -> str:
        """The end in a few words."""
        if self.code < 0:
            return f"rank {self.rank} was killed by {signal.Signals(-self.code).name}"
        if self.report is not None and self.report.error:
            return f"rank {self.rank} failed with {self.report.error}"
        return f"rank {self.rank} left with exit code {self.code}"

    @property
    def exit_code(self) -> int:
        """The exit code as a shell has it."""
        return 128 - self.code if self.code < 0 else self.code


class Processes:
    """One process per rank.

    They are forked from a server that has imported torch and done nothing else: it takes its time
    once, and restarts are quick. Each leads a process group of its own, so that what it starts
    ends with it, and Ctrl-C in a terminal reaches it only through the launcher.
    """

    def __init__(self, job: bytes, environments: Sequence[dict[str, str]]) -> None:
        self.ends: dict[int, End] = {}
        self._reports: dict[int, Report] = {}
        self._pipes: list[Connection] = []
        self._started: list[ForkServerProcess] = []
        with _signals_held_back():
            for environment in environments:
                ours, theirs = _CONTEXT.Pipe(duplex=False)
                args = (theirs, job, environment, _Streams())
                process = _CONTEXT.Process(target=main, args=args)
                process.start()
                theirs.close()
                self._pipes.append(ours)
                self._started.append(process)

    @property
    def pids(self) -> dict[int, int]:
        """The process of each rank."""
        return {rank: process.pid or 0 for rank, process in enumerate(self._started)}

    def look(self) -> None:
        """Take notice of the processes that have ended."""
        for rank, (process, pipe) in enumerate(zip(self._started, self._pipes, strict=True)):
            if rank in self.ends:
                continue
            code = process.exitcode  # before its report is looked for, which it sends before
            with suppress(EOFError, OSError):
                if rank not in self._reports and pipe.poll():
                    self._reports[rank] = pickle.loads(pipe.recv_bytes())
            if code is not None:
                self.ends[rank] = End(rank, code, self._reports.get(rank))

    @property
    def all_ended(self) -> bool:
        """Whether no process is left."""
        return len(self.ends) == len(self._started)

    def first_failure(self) -> End | None:
        """The process whose end is the cause of the others' ends.

        When one dies, the others fail soon after, for want of it. A process that did not come to
        report its end was first, unless it gave up by itself (SIGABRT), as some do for want of
        others; of those that reported, the earliest.
        """

        def order(end: End) -> tuple[bool, bool, float]:
            when = end.report.when if end.report is not None else 0.0
            return end.code == -signal.SIGABRT, end.report is not None, when

        return min((end for end in self.ends.values() if end.code != 0), key=order, default=None)

    def signal(self, number: int) -> None:
        """Send a signal to those that run."""
        for rank, process in enumerate(self._started):
            if rank not in self.ends and process.pid is not None:
                with suppress(ProcessLookupError):
                    os.kill(process.pid, number)

    def wait(self, seconds: float) -> None:
        """Wait so long, or until all have ended."""
        deadline = time.monotonic() + seconds
        self.look()
        while not self.all_ended and time.monotonic() < deadline:
            time.sleep(0.02)
            self.look()

    def kill(self) -> None:
        """End those that run, at once, and whatever any of them has started."""
        for process in self._started:
            if process.pid is not None:
                with suppress(ProcessLookupError, PermissionError):
                    os.killpg(process.pid, signal.SIGKILL)
        self.signal(signal.SIGKILL)  # one that has no group yet
        for process, pipe in zip(self._started, self._pipes, strict=True):
            process.join()
            pipe.close()
