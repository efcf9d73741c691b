"""The rank processes of one attempt: start, poll, signal and kill them together."""

import os
import pickle
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import get_context, resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess
from multiprocessing.forkserver import ensure_running
from multiprocessing.reduction import DupFd
from types import FrameType
from typing import Any

from stoker.launch.rank import FORWARDED, RankResult, main

_CONTEXT = get_context("forkserver")


@contextmanager
def _signals_blocked() -> Iterator[None]:
    """Start processes with signals blocked: the fork server for good, ranks until they are ready.

    A signal that a terminal or a job scheduler sends to the process group does not reach the
    server.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, FORWARDED)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def start_forkserver(*modules: str) -> None:
    """Start the process that ranks are forked from; it imports torch in the background.

    Args:
        modules: what it imports besides, so that a rank that is started later is ready soon.
    """
    _CONTEXT.set_forkserver_preload(["torch.distributed", *modules])
    resource_tracker.ensure_running()  # it unblocks signals when it starts
    with _signals_blocked():
        ensure_running()


@contextmanager
def signals_to(
    handler: Callable[[int, FrameType | None], None], more: Sequence[signal.Signals] = ()
) -> Iterator[None]:
    """Send signals to the handler inside the block; outside the main thread, do nothing."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, handler) for number in (*FORWARDED, *more)}
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)


class _Streams:
    """Pickles to a call that connects a rank to this process's standard output and error."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _redirect, (DupFd(1), DupFd(2))


def _redirect(out: Any, err: Any) -> None:
    os.dup2(out.detach(), 1)
    os.dup2(err.detach(), 2)


@dataclass(frozen=True)
class ExitStatus:
    """How one process exited. ``result`` is None if it was killed before it could send one."""

    rank: int
    code: int
    """The exit code, or the negative signal number of a killed process."""
    result: RankResult | None

    @property
    def by_signal(self) -> bool:
        """Whether it exited because of a forwarded signal."""
        return self.code in {128 + n for n in FORWARDED} | {-n for n in FORWARDED}

    @property
    def lost_peer(self) -> bool:
        """Whether it failed only because it lost another process: gloo may abort then."""
        if self.result is None:
            return self.code == -signal.SIGABRT
        return self.result.secondary

    @property
    def lost_worker(self) -> bool:
        """Whether it failed because a worker of a `DataLoader` was killed."""
        return self.result is not None and self.result.lost_worker

    @property
    def summary(self) -> str:
        """The rank and how it exited."""
        if self.code == 0:
            return f"rank {self.rank} exited with code 0 before the other ranks had finished"
        if self.code < 0:
            return f"rank {self.rank} was killed by {signal.Signals(-self.code).name}"
        result = self.result or RankResult(0.0, self.code)
        return result.summary(self.rank)

    @property
    def exit_code(self) -> int:
        """The exit code as a shell reports it."""
        return 128 - self.code if self.code < 0 else self.code or 1


class Processes:
    """One process per rank.

    Ranks are forked from a server that has imported torch, so that the import happens once and
    restarts are quick. Each rank leads its own process group: its children end with it, and Ctrl-C
    in a terminal reaches it only through the launcher.
    """

    def __init__(self, job: bytes, environments: Sequence[dict[str, str]]) -> None:
        self.exited: dict[int, ExitStatus] = {}
        self._results: dict[int, RankResult] = {}
        self._pipes: list[Connection] = []
        self._started: list[ForkServerProcess] = []
        self._job = job
        for environment in environments:
            self.start(environment)

    def start(self, environment: dict[str, str]) -> None:
        """Start one more process."""
        with _signals_blocked():
            receiver, sender = _CONTEXT.Pipe(duplex=False)
            args = (sender, self._job, environment, _Streams())
            process = _CONTEXT.Process(target=main, args=args)
            process.start()
            sender.close()
            self._pipes.append(receiver)
            self._started.append(process)

    @property
    def pids(self) -> dict[int, int]:
        """The process id of each rank."""
        return {rank: process.pid or 0 for rank, process in enumerate(self._started)}

    def poll(self) -> None:
        """Record the processes that have exited."""
        for rank, (process, pipe) in enumerate(zip(self._started, self._pipes, strict=True)):
            if rank in self.exited:
                continue
            code = process.exitcode  # read first: a process sends its result before it exits
            with suppress(EOFError, OSError):
                if rank not in self._results and pipe.poll():
                    self._results[rank] = pickle.loads(pipe.recv_bytes())
            if code is not None:
                self.exited[rank] = ExitStatus(rank, code, self._results.get(rank))

    @property
    def all_exited(self) -> bool:
        """Whether no process is running."""
        return len(self.exited) == len(self._started)

    def first_failure(self) -> ExitStatus | None:
        """Return the failure that caused the others, or None.

        When one rank dies, the others fail soon after because they lost it, so these come last. Of
        the rest, a process without a result failed first, and then the earliest. If all have lost
        another process, the first one that exited with code 0 left too early.
        """

        def order(status: ExitStatus) -> tuple[bool, bool, float]:
            result = status.result
            time = 0.0 if result is None else result.time
            return status.lost_peer, result is not None, time

        failed = [status for status in self.exited.values() if status.code != 0]
        if failed and all(status.lost_peer for status in failed):
            first = min(order(status) for status in failed)[2]
            left = [status for status in self.exited.values() if status.code == 0]
            failed = [status for status in left if order(status)[2] < first] or failed
        return min(failed, key=order, default=None)

    def signal(self, number: int) -> None:
        """Send a signal to the running processes."""
        for rank in range(len(self._started)):
            self.send(number, rank)

    def send(self, number: int, rank: int) -> None:
        """Send a signal to one process, which may have exited since the last `poll`."""
        pid = self._started[rank].pid
        if rank not in self.exited and pid is not None:
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    def wait(self, seconds: float) -> None:
        """Wait until all processes have exited, but at most ``seconds``."""
        deadline = time.monotonic() + seconds
        self.poll()
        while not self.all_exited and time.monotonic() < deadline:
            time.sleep(0.02)
            self.poll()

    def wait_for_cause(self, seconds: float) -> None:
        """Wait, at most ``seconds``, while all that failed only lost a process that still runs."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and not self.all_exited:
            failure = self.first_failure()
            if failure is None or not failure.lost_peer:
                return
            self.wait(0.02)

    def kill(self) -> None:
        """Kill the running processes and their children."""
        for process in self._started:
            if process.pid is not None:
                with suppress(ProcessLookupError, PermissionError):
                    os.killpg(process.pid, signal.SIGKILL)
        self.signal(signal.SIGKILL)  # a process that does not lead its group yet
        for process, pipe in zip(self._started, self._pipes, strict=True):
            process.join()
            pipe.close()
