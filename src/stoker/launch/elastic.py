"""The launcher of an elastic job: it hosts the store and replaces processes that are lost."""

import os
import secrets
import signal
import sys
import time
from collections.abc import Sequence
from types import FrameType
from typing import Any

from torch.distributed import TCPStore  # type: ignore[attr-defined]

from stoker.core.errors import Preempted, RankFailed
from stoker.core.membership import JOINS, MEMBER, SECRET, JobStore, Progress
from stoker.core.process import process_stat
from stoker.core.rank_status import HUNG
from stoker.launch.processes import ExitStatus, Processes, signals_to

_LOCALHOST = "127.0.0.1"
_POLL = 0.02
_STOPPED = 1.0  # seconds after which a process that was stopped (SIGSTOP) is lost
_MOST_FAILURES = 3  # replacements in a row that did not join
_STALLED = 120.0  # seconds after which members that all wait form a new group
_MOST_STALLS = 2  # new groups in a row that did not help
_STUCK = 60.0  # seconds after which a member that still waits for a former group is lost
_READ = 1.0  # seconds between two looks at what processes report
_SILENT = 1800.0  # seconds after which a process that does not report is lost


def run_elastic(
    job: bytes,
    nproc: int,
    limits: tuple[int, int],
    max_restarts: int,
    dead_after: float,
    grace: float,
) -> Any:
    """Run an elastic job and return the value of its first member."""
    for attempt in range(max_restarts + 1):
        launcher = ElasticJob(job, nproc, limits, attempt, dead_after + grace)
        with signals_to(launcher.on_signal, (signal.SIGTTIN, signal.SIGTTOU)):
            try:
                launcher.run()
            finally:
                launcher.processes.kill()
        if launcher.failure is None:
            break
        left = max_restarts - attempt
        again = f"; restarting ({attempt + 1} of {max_restarts})" if left else ""
        if not left or launcher.failure.code == 2:
            raise RankFailed(launcher.failure_text, launcher.failure.exit_code)
        print(launcher.failure_text + again, file=sys.stderr, flush=True)
    return launcher.value()


class ElasticJob:
    """One start of an elastic job.

    A process that is killed, stopped, hangs, leaves or loses a worker of its `DataLoader` is lost:
    the members continue without it, and another one is started in its place. A process that raises
    another error ends the job, since the others would raise it too. SIGTTIN to the launcher adds a
    process and SIGTTOU removes one, within the limits.

    Args:
        job: the serialized function.
        nproc: the number of processes to start with, and to return to.
        limits: the least and the largest number of processes.
        attempt: how often the job was restarted.
        patience: seconds that processes get to save and exit.
    """

    def __init__(
        self, job: bytes, nproc: int, limits: tuple[int, int], attempt: int, patience: float
    ) -> None:
        self.limits, self._target, self._patience = limits, nproc, patience
        self._store = TCPStore(_LOCALHOST, 0, is_master=True, wait_for_workers=False)
        self._jobs = JobStore(self._store)
        self._generation, self._members = 0, list(range(nproc))
        self._jobs.propose(0, self._members)
        self._environment = {
            **os.environ,
            "MASTER_ADDR": _LOCALHOST,
            "MASTER_PORT": str(self._store.port),
            "LOCAL_WORLD_SIZE": str(limits[1]),
            "TORCHELASTIC_RESTART_COUNT": str(attempt),
            SECRET: secrets.token_hex(16),
        }
        self.failure: ExitStatus | None = None
        self.failure_text = ""
        self._lost: set[int] = set()
        self._leaving: set[int] = set()
        self._stopped: dict[int, float] = {}
        self._failures = 0
        self._closing: int | None = None
        self._reports = _Reports(self._jobs)
        self._deadline = float("inf")
        self.processes = Processes(job, [])
        for _ in range(nproc):
            self._start()

    def _start(self, **extra: str) -> None:
        number = len(self.processes.pids)
        self.processes.start({**self._environment, **extra, MEMBER: str(number)})

    def run(self) -> None:
        """Watch the processes until the job has ended."""
        while self.failure is None:
            self.processes.poll()
            self._follow_members()
            self._end_stopped()
            self._check_progress()
            for member in [*self.processes.exited]:
                if member not in self._lost:
                    self._on_exit(self.processes.exited[member])
            running = [m for m in self._members if m not in self.processes.exited]
            if not running or time.monotonic() > self._deadline:
                break
            self._keep_number(len(running))
            time.sleep(_POLL)
        if self.failure is None and self.value_of() is None and self._closing is None:
            self._fail(self._last_lost())

    def value(self) -> Any:
        """Return what the first member returned that has finished."""
        status = self.value_of()
        if status is not None and status.result is not None:
            return status.result.value
        if self._closing == signal.SIGINT:
            raise KeyboardInterrupt
        raise Preempted

    def value_of(self) -> ExitStatus | None:
        """Return how the first member exited that has finished; None if none has."""
        done = [m for m in self._members if self._code(m) == 0]
        finished = done or [m for m in self.processes.exited if self._code(m) == 0]
        return self.processes.exited[finished[0]] if finished else None

    def _code(self, member: int) -> int | None:
        status = self.processes.exited.get(member)
        return None if status is None else status.code

    def _last_lost(self) -> ExitStatus:
        return next(reversed(self.processes.exited.values()))

    # Members

    def _follow_members(self) -> None:
        """Take note of members that have joined or left, and propose to continue without the lost.

        A member that has finished stays in the list, so that the first one has the value.
        """
        self._generation, members = self._jobs.newest(self._generation)
        if {*members} - {*self._members}:
            self._failures = 0
        rest = [member for member in members if member not in self._lost]
        if rest and rest != members:
            self._jobs.propose(self._generation + 1, rest)
        if not self._finished:
            self._members = rest or members

    @property
    def _finished(self) -> bool:
        return any(status.code == 0 for status in self.processes.exited.values())

    def _on_exit(self, status: ExitStatus) -> None:
        """Decide what the exit of a process means."""
        self._lost.add(status.rank)
        self._jobs.bury(status.rank)
        lost_other = status.lost_peer or status.lost_worker
        is_loss = status.code <= 0 or status.by_signal or lost_other or status.code == HUNG
        if status.code != 0:
            how = "left the job" if status.by_signal and status.code > 0 else status.summary
            how = "a worker of its DataLoader was killed" if status.lost_worker else how
            joined = status.rank in self._members
            self._failures += not joined
            if is_loss and self._closing is None:
                print(f"member {status.rank}: {how}; the others continue", file=sys.stderr)
        if not is_loss:
            self._fail(status)

    def _end_stopped(self) -> None:
        """Kill a process that was stopped: the others wait for it."""
        now = time.monotonic()
        for member, pid in self.processes.pids.items():
            state = "" if member in self.processes.exited else process_stat(pid)[0]
            if state != "T":
                self._stopped.pop(member, None)
            elif now - self._stopped.setdefault(member, now) > _STOPPED:
                self.processes.send(signal.SIGKILL, member)

    def _check_progress(self) -> None:
        """Let members that wait for each other form a new group; end the job if they wait again."""
        pids = {m: pid for m, pid in self.processes.pids.items() if m not in self.processes.exited}
        for member in self._reports.silent([*pids]):
            print(f"member {member} has not reported for {_SILENT:g} s", file=sys.stderr)
            self.processes.send(signal.SIGKILL, member)
        for member in self._reports.stuck(
            [m for m in self._members if m in pids], self._generation
        ):
            print(f"member {member} still waits for a former group", file=sys.stderr)
            self.processes.send(signal.SIGKILL, member)
        members = [member for member in self._members if member in pids]
        seconds = self._reports.stalled(members) if members else 0.0
        if not seconds:
            return
        what = f"members {members} have waited for each other for {seconds:.0f} s"
        if self._reports.stalls <= _MOST_STALLS:
            print(f"{what}: they form a new group", file=sys.stderr, flush=True)
            self._jobs.propose(self._generation + 1, members)
        else:
            self.failure = ExitStatus(members[0], HUNG, None)
            self.failure_text = f"{what}, also after new groups; the job was ended"

    def _keep_number(self, running: int) -> None:
        """Start processes up to the number that the job should have; end it below the least."""
        alive = len(self.processes.pids) - len(self.processes.exited)
        if self._closing is not None or self._finished:
            return
        if running < self.limits[0] and self._generation:
            self._fail(self._last_lost(), f": fewer than {self.limits[0]} processes are left")
        elif alive < self._target and self._failures < _MOST_FAILURES:
            self._start(**{JOINS: "1"})

    def _fail(self, status: ExitStatus, why: str = "; the other ranks were stopped") -> None:
        if status.result is not None and status.result.text:
            print(status.result.text, file=sys.stderr, flush=True)
        self.failure, self.failure_text = status, status.summary + why

    # Signals

    def on_signal(self, number: int, _: FrameType | None) -> None:
        """End the job, or change the number of its processes."""
        if number in (signal.SIGTTIN, signal.SIGTTOU):
            self._change_number(1 if number == signal.SIGTTIN else -1)
            return
        if number == signal.SIGINT and self._closing == number:
            self.processes.signal(signal.SIGKILL)
            raise KeyboardInterrupt
        self._closing = number
        self._store.set("closing", "1")
        if number != signal.SIGINT:
            self._deadline = min(self._deadline, time.monotonic() + self._patience)
        self.processes.signal(number)

    def _change_number(self, by: int) -> None:
        least, most = self.limits
        target = min(most, max(least, self._target + by))
        running = [m for m in self._members if m not in self._lost and m not in self._leaving]
        if target < self._target and len(running) > target:
            self._leaving.add(running[-1])
            self.processes.send(signal.SIGTERM, running[-1])
        self._target = target


class _Reports:
    """What the processes report: whether they still do, and whether the members advance.

    Time counts only while the launcher runs: it may have been stopped together with them.

    Attributes:
        stalls: how often in a row all members have waited for too long.
    """

    def __init__(self, jobs: JobStore) -> None:
        self._jobs = jobs
        self._clock, self._last, self._due = 0.0, time.monotonic(), 0.0
        self._reports: dict[int, tuple[Progress | None, float]] = {}
        self._stuck: dict[int, float] = {}
        self._state: Any = None
        self._since, self._furthest, self.stalls = 0.0, -1, 0

    def silent(self, running: Sequence[int]) -> list[int]:
        """Read the reports; return the processes that have sent none for too long."""
        now = time.monotonic()
        self._clock, self._last = self._clock + min(now - self._last, 1.0), now
        if self._clock < self._due:
            return []
        self._due = self._clock + _READ
        for member in running:
            found = self._jobs.progress(member)
            if member not in self._reports or self._reports[member][0] != found:
                self._reports[member] = found, self._clock
        return [m for m in running if self._clock - self._reports[m][1] > _SILENT]

    def stuck(self, members: Sequence[int], newest: int) -> list[int]:
        """Return the members that wait for a group older than the newest, for too long.

        A wait of Stoker ends with its generation; one in a collective of the user's own may not.
        """
        for member in members:
            report = self._reports.get(member, (None, 0.0))[0]
            if report is not None and report.in_group and report.generation < newest:
                self._stuck.setdefault(member, self._clock)
            else:
                self._stuck.pop(member, None)
        return [m for m in members if self._clock - self._stuck.get(m, self._clock) > _STUCK]

    def stalled(self, members: Sequence[int]) -> float:
        """Return for how many seconds all members have waited, if that is too long; else 0."""
        reports = [self._reports.get(member, (None, 0.0))[0] for member in members]
        waits = [one.finished for one in reports if one is not None and one.waiting]
        state = (tuple(members), tuple(waits))
        if max(waits, default=-1) > self._furthest:
            self._furthest, self.stalls = max(waits), 0
        if state != self._state or len(waits) < len(members):
            self._state, self._since = state, self._clock
        seconds = self._clock - self._since
        if seconds <= _STALLED:
            return 0.0
        self._since, self.stalls = self._clock, self.stalls + 1
        return seconds
