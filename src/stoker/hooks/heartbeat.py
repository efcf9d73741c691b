"""`Heartbeat`: end a job in which a rank hangs, and name that rank."""

import atexit
import faulthandler
import os
import signal
import socket
import threading
from time import monotonic, monotonic_ns, process_time, thread_time
from typing import Any, ClassVar, Literal

from stoker.core import dist
from stoker.core.errors import check_number
from stoker.core.process import continue_without_launcher, is_traced, print_last, process_stat
from stoker.core.rank_status import (
    DUMP,
    HUNG,
    LastStatus,
    RankStatus,
    StatusExchange,
    collective_counts,
)
from stoker.core.timers import timed_guard
from stoker.hooks.base.hook import Hook, Priority
from stoker.hooks.base.stack import Stack, outermost_code
from stoker.run import Run
from stoker.storage import crash_points

_PATIENCE = 4
"""How many times longer a process may work without progress than stand still."""
_LONGEST = 1800.0
"""Seconds for compiling, and for a rank that has not joined the run."""
_WORKING = 0.01
"""The share of a CPU that a process uses if it does anything at all."""


class Heartbeat(Hook):
    """Ends a job in which a rank hangs: in its data, a step, a validation, a save or a hook.

    A thread checks each process a few times a minute, which costs nothing per step. A process
    stands still if its counters, collectives and saves do not advance and it uses no CPU. After
    ``after`` seconds it prints what it is doing and the stacks of its threads, and exits with code
    75. A process that works without advancing, or is in its first step, has four times as long;
    one that compiles has half an hour.

    A process that waits for another rank is left alone: it has started more collectives than that
    rank. The ranks know from each other through the store of the process group. A process that is
    stopped (SIGSTOP) cannot report itself: the rank before it prints its stacks and kills it.

    A job of several ranks has this hook even if you do not add it.

    Args:
        after: Seconds to stand still. Choose more than the longest time that a data fetch, an
            operation or a hook of yours waits for something. None turns it off.
    """

    priority = Priority.MEASURE
    same_on_all_ranks = True
    observes = True  # and a job of one process has none

    _active: "ClassVar[Heartbeat | None]" = None
    """The one that watches this process, or did so last."""

    def __init__(self, after: float | None = 300.0) -> None:
        if after is not None:
            check_number("after", after)
        if after is not None and not after > 0:
            raise ValueError(f"after must be a positive number of seconds, got {after}")
        self.after = after
        self._done = threading.Event()
        self._watchdog: Watchdog | None = None
        self._thread: threading.Thread | None = None

    def before_run(self, run: Run) -> None:
        """Start the watchdog thread, which ends with the run."""
        if self.after is None:
            return
        if Heartbeat._active is not None:
            Heartbeat._active._stop()
        Heartbeat._active = self
        atexit.register(self._stop)
        interval = min(5.0, self.after / 20)
        self._watchdog, self._done = Watchdog(run, self.after, interval), threading.Event()
        arguments = (self._watchdog, self._done, interval)
        self._thread = threading.Thread(target=self._watch, args=arguments, daemon=True)
        self._thread.start()

    def _stop(self) -> None:
        """End the thread of the last run, which may not have noticed yet that it has ended."""
        atexit.unregister(self._stop)
        self._done.set()
        if self._thread is not None:
            self._thread.join(5.0)
            self._thread = None

    def on_exception(self, run: Run) -> None:
        """Add to the error of a lost connection which rank has left."""
        if self._watchdog is not None and run.error is not None and dist.lost_peer(run.error):
            for line in self._watchdog.who_left():
                run.error.add_note(line)

    def _watch(self, watchdog: "Watchdog", done: threading.Event, interval: float) -> None:
        while not done.wait(interval) and watchdog.check(monotonic()):
            pass
        watchdog.leave()


class Watchdog:
    """Judges whether this process, or the next rank, hangs.

    Args:
        run: the run in progress, on the thread that calls this.
        after: seconds to stand still.
        interval: seconds between two checks.
    """

    def __init__(self, run: Run, after: float, interval: float) -> None:
        self._run, self._after, self._interval = run, after, interval
        self._thread, self._base = threading.get_ident(), outermost_code()
        self._parent = os.getppid()
        self._progress: Any = None
        self._samples, self._steps = (0, 0), 0  # at how many checks there were new steps
        self._since = self._last_check = monotonic()
        self._cpu = 0.0
        self._exchange: StatusExchange | None = None
        if dist.world_size() > 1 and dist.members() is None:
            self._exchange = StatusExchange(interval)
        if self._exchange is not None:
            self._neighbour = (dist.rank() + 1) % dist.world_size()
            self._rank_0_has_store = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
            continue_without_launcher()
            self._prints_stacks = _print_stacks_on_signal()
            self._exchange.own = self._status(Stack(self._thread, self._base))
            self._exchange.start()

    @timed_guard("heartbeat, per check", thread_time)
    def check(self, now: float) -> bool:
        """Check the run, and end a process that hangs; return whether the run is in progress."""
        stack = Stack(self._thread, self._base)
        if not stack.in_trainer:
            return False
        progress = self._measure()
        overslept = now - self._last_check > max(self._after / 2, 3 * self._interval)
        self._last_check = now
        paused = overslept or stack.in_debugger or is_traced() or _waits_for_members()
        if progress != self._progress or paused:
            self._steps += progress[:2] != self._samples
            self._samples, self._progress = progress[:2], progress
            self._since, self._cpu = now, process_time()
        exchange = self._exchange
        if exchange is not None:
            exchange.own = self._status(stack)
            if overslept:
                exchange.answered = now
            self._check_neighbour(exchange)
            self._check_launcher()
        idle = now - self._since
        if idle > self._limit(stack, idle):
            self._check_self(stack, idle)
        return True

    def leave(self) -> None:
        """Report that this rank has left the run."""
        if self._exchange is not None:
            error = self._run.error
            failed = error is not None and not isinstance(error, SystemExit)
            self._exchange.own = self._status(None, "failed" if failed else "ended")
            self._exchange.stop()

    def who_left(self) -> list[str]:
        """Return a line for each rank that has left the run without an error."""
        return [
            f"rank {rank} ({seen.status.process}) has left the job: it was {seen.status.where}"
            for rank, seen in self._others(wait=True).items()
            if seen.status.left == "ended" or (seen.status.gone and not seen.status.left)
        ]

    # Measuring

    def _measure(self) -> tuple[Any, ...]:
        """Return numbers of which some change when the run advances."""
        run, feeder = self._run, self._run.feeder
        batches = feeder.position.batches if feeder is not None else 0
        micro_batches = len(getattr(run, "outputs", ()))
        counts = collective_counts() if self._exchange is not None else {}
        return (
            run.samples,
            batches,
            run.step,
            id(feeder),
            micro_batches,
            counts,
            crash_points.passed,
        )

    def _limit(self, stack: Stack, idle: float) -> float:
        """Return the seconds that this process may go without progress."""
        if stack.compiling:
            return max(self._after, _LONGEST)
        works = process_time() - self._cpu > _WORKING * idle
        return self._after * (_PATIENCE if works or self._steps < 2 else 1)

    def _status(self, stack: Stack | None, left: Literal["", "ended", "failed"] = "") -> RankStatus:
        pid = os.getpid()
        return RankStatus(
            number=monotonic_ns(),
            where=stack.where(self._run) if stack is not None else f"at step {self._run.step}",
            waiting=stack is not None and (stack.waiting or stack.in_debugger),
            collectives={} if self._run.engine.stages is not None else collective_counts(),
            left=left,
            prints_stacks=self._prints_stacks,
            host=socket.gethostname(),
            pid=pid,
            started=process_stat(pid)[1],
        )

    # Judging

    def _check_self(self, stack: Stack, idle: float) -> None:
        rank = dist.rank()
        what = f"rank {rank} has made no progress for {idle:.0f} s: it is {stack.where(self._run)}"
        if self._exchange is None or not self._waits():
            process = f"pid {os.getpid()} on {socket.gethostname()}"
            _end(f"{what} ({process})")
        others = self._others(wait=False)
        absent = [rank for rank in range(dist.world_size()) if rank not in others]
        absent.remove(rank)
        left = [rank for rank, seen in others.items() if seen.status.left]
        if left and idle > 2 * self._after:
            _end(f"{what}, waiting for rank {left[0]}, which has left the run")
        if absent and idle > max(self._after, _LONGEST):
            _end(f"{what}, waiting for rank {absent[0]}, which has not started to train")
        if idle > 2 * self._after and not absent and all(self._waits_for_others(others)):
            _end(f"{what}, and every rank waits for another")

    def _waits(self) -> bool:
        """Return whether this process waits for another rank."""
        others = self._others(wait=True)
        assert self._exchange is not None
        assert self._exchange.own is not None
        return _waits(self._exchange.own, [seen.status for seen in others.values()])

    def _waits_for_others(self, others: dict[int, LastStatus]) -> list[bool]:
        assert self._exchange is not None
        assert self._exchange.own is not None
        statuses = [self._exchange.own, *(seen.status for seen in others.values())]
        return [
            _waits(status, [other for other in statuses if other is not status])
            for status in statuses
        ]

    def _others(self, *, wait: bool) -> dict[int, LastStatus]:
        if self._exchange is None:
            return {}
        return self._exchange.everyone() if wait else dict(self._exchange.seen)

    def _check_neighbour(self, exchange: StatusExchange) -> None:
        """End the next rank if it does not report, or rank 0 if the store that it holds does not.

        If it is on another machine, end this process.
        """
        rank, silence = self._neighbour, 0.0
        exchange.wanted |= {rank, 0} - {exchange.rank}
        seen = exchange.seen.get(rank)
        if seen is not None and seen.status.left:
            self._neighbour = (rank + 1) % exchange.world_size
        elif seen is not None:
            silence = seen.silence
        if self._rank_0_has_store and monotonic() - exchange.answered > self._after:
            rank, silence, seen = 0, monotonic() - exchange.answered, exchange.seen.get(0)
        if seen is not None and rank != exchange.rank and silence > self._after:
            self._end_silent(rank, seen.status, silence)

    def _end_silent(self, rank: int, status: RankStatus, silence: float) -> None:
        state = status.state
        if status.gone or state == "t":  # its launcher notices; or a debugger holds it
            return
        if state in ("R", "S", "I") and silence <= _PATIENCE * self._after:
            return
        how = {"T": "it is stopped (state T)", "D": "it waits for a device (state D)"}
        what = (
            f"rank {rank} has not reported for {silence:.0f} s: "
            f"{how.get(state or '', 'it does not respond')}; its last report was "
            f"'{status.where}' ({status.process})"
        )
        if state is None:
            _end(what, stacks=False)
        print_last(f"{what}; the stacks of its threads:")
        if not status.end():
            _end(f"rank {rank} cannot be ended", stacks=False)
        self._since = monotonic()  # the launcher ends this process now

    def _check_launcher(self) -> None:
        """Save and exit if the launcher is gone: nobody else would end this process."""
        if os.getppid() != self._parent:
            self._parent = os.getppid()
            if self._exchange is not None:
                self._exchange.closed = True  # the launcher held the store
            print_last(f"rank {dist.rank()}: its launcher is gone; it saves and exits")
            os.kill(os.getpid(), signal.SIGTERM)


def _waits(status: RankStatus, others: list[RankStatus]) -> bool:
    """Return whether a rank waits for another: it has started more collectives than that one."""
    ahead = behind = False
    for other in others:
        for group, count in status.collectives.items():
            theirs = other.collectives.get(group, count)
            ahead, behind = ahead or theirs < count, behind or theirs > count
    return (ahead and not behind) or (status.waiting and not behind)


def _waits_for_members() -> bool:
    """Return whether this process of an elastic job waits for others.

    The one that it waits for ends itself. If all wait, the launcher notices.
    """
    members = dist.members()
    return members is not None and members.waiting


def _print_stacks_on_signal() -> bool:
    """Let a signal print the stacks of this process, even if Python cannot run."""
    if DUMP is None or signal.getsignal(DUMP) is not signal.SIG_DFL:
        return False
    faulthandler.register(DUMP, file=2, all_threads=True)
    return True


def _end(message: str, *, stacks: bool = True) -> None:
    """Print the message and the stacks without taking any lock, and exit."""
    if print_last(f"{message}; the stacks of its threads:" if stacks else message) and stacks:
        faulthandler.dump_traceback(file=2, all_threads=True)
    os._exit(HUNG)
