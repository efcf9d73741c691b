"""Run an elastic training, and lose and add processes at random moments.

Each process records its steps as in `stoker.testing.record`. At the step of an event, all of them
wait for each other, so that the event happens there, before, during or after the step. Some steps
before, they wait for the processes that replace those that were lost, which join in between.
"""

import os
import random
import signal
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from time import monotonic, sleep, time
from typing import Literal, TypeAlias, get_args

from stoker import launch
from stoker.core import dist
from stoker.core.process import process_stat
from stoker.run import Run
from stoker.testing.record import Position, Recorder, Records
from stoker.testing.watcher import watching

EventKind: TypeAlias = Literal["kill", "preempt", "stop", "hang", "remove", "add"]
EVENTS: tuple[str, ...] = get_args(EventKind)
"""SIGKILL, SIGTERM, SIGSTOP, a hook that does not return, and one process less or more."""

_SIGNALS = {"kill": signal.SIGKILL, "preempt": signal.SIGTERM, "stop": signal.SIGSTOP}
_DELAY = 0.1  # seconds between an event and the step, at most
_POLL = 0.01
_PATIENCE = 600.0  # seconds to wait for a process that joins
_STEPS_TO_JOIN = 2


@dataclass(frozen=True)
class Event:
    """Something that happens to an elastic job.

    Attributes:
        kind: what happens.
        position: the step at which it happens.
        place: which of the processes it happens to, from 0 for the first to 1.
        delay: seconds between the beginning of the step and the event; negative if it comes first.
        replaced: whether to wait for the processes that replace those that were lost before.
    """

    kind: str
    position: Position
    place: float
    delay: float
    replaced: bool

    @property
    def meeting(self) -> Position:
        """The step before which processes wait for those that join."""
        return Position(self.position.fit, self.position.step - _STEPS_TO_JOIN)


@dataclass(frozen=True)
class Happened:
    """An event that happened.

    Attributes:
        kind: what happened.
        step: the last step that was finished before.
        pid: the process that was lost; 0 if the launcher changed their number.
        seconds: until the next step was finished; None if none was.
        processes: how many processes trained before.
    """

    kind: str
    step: int
    pid: int
    seconds: float | None
    processes: int


def plan_events(reference: Records, count: int, kinds: Sequence[str], seed: int) -> list[Event]:
    """Return events that are spread over the steps of a run, the same for the same seed."""
    rng, steps = random.Random(seed), sorted(reference.steps)[3 :: _STEPS_TO_JOIN + 2]
    positions = rng.sample(steps, min(count, len(steps)))
    return [
        Event(
            rng.choice(kinds),
            position,
            rng.random(),
            rng.uniform(-_DELAY / 2, _DELAY),
            rng.random() < 0.8,
        )
        for position in sorted(positions)
    ]


class _MemberRecorder(Recorder):
    """Records a training, and waits at the steps of events until they may happen."""

    def __init__(self, folder: Path, run_dir: Path, events: Sequence[Event]) -> None:
        pid = os.getpid()
        super().__init__(folder / f"{pid}.records", run_dir)
        self._folder_of_events, self._pid = folder, pid
        meetings = [event.meeting for event in events if event.replaced]
        positions = [*meetings, *(event.position for event in events)]
        self._positions = {(position.fit, position.step) for position in positions}
        self._times = os.open(folder / f"{pid}.times", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self._hangs = folder / f"{pid}.hangs"

    def before(self, point: str, run: Run) -> None:
        """Touch a file before a step with an event, and wait for another one."""
        super().before(point, run)
        if point == "before_step" and run.task == "fit":
            self._note(run)  # a process that has joined has finished no step
            if (self.fit, run.step + 1) in self._positions:
                self._meet(f"{self.fit}-{run.step + 1}")

    def _note(self, run: Run) -> None:
        os.write(self._times, f"{time()} {self.fit} {run.step}\n".encode())

    def _meet(self, at: str) -> None:
        members = dist.members()
        assert members is not None
        with members.waits():  # it does not hang
            (self._folder_of_events / f"{self._pid}.at-{at}").touch()
            while not (self._folder_of_events / f"go-{at}").exists():
                (self._folder_of_events / f"{at}.number-{members.reachable()}").touch()
                sleep(_POLL)

    def after(self, point: str, run: Run) -> None:
        """Note when a step was finished; hang, if it has to."""
        super().after(point, run)
        if point == "after_step" and run.task == "fit":
            self._note(run)
        if point == "after_forward" and self._hangs.exists():
            threading.Event().wait()


def _train(
    train: Callable[[Path], object], folder: Path, run_dir: Path, events: Sequence[Event]
) -> None:
    with watching(_MemberRecorder(folder, run_dir, events)):
        train(run_dir)


@dataclass
class ElasticRun:
    """One run of a training in processes that come and go.

    Args:
        train: the training, for another process.
        folder: an empty folder for the run and its records.
        nproc: the number of processes to start with.
        most: the largest number of processes.
        events: what happens to them.
    """

    train: Callable[[Path], object]
    folder: Path
    nproc: int
    most: int
    events: Sequence[Event] = ()

    def run(self) -> list[Happened]:
        """Run the training to its end, in the main thread; return the events that happened."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self._ended = threading.Event()
        self._target = self.nproc
        self._happened: list[tuple[Happened, float]] = []
        thread = threading.Thread(target=self._make_events, daemon=True)
        thread.start()
        numbers = (signal.SIGTTIN, signal.SIGTTOU)  # they would stop this process after the run
        before = {number: signal.signal(number, lambda *_: None) for number in numbers}
        try:
            job = (self.train, self.folder, self.folder / "run", self.events)
            launch.run(_train, *job, nproc=self.nproc, elastic=(1, self.most))
        finally:
            self._ended.set()
            thread.join()
            for number, handler in before.items():
                signal.signal(number, handler)
        times = self.times()
        return [_with_seconds(event, since, times) for event, since in self._happened]

    def records(self) -> dict[int, Records]:
        """Return what each process has recorded, by its id."""
        found = {int(path.stem): path for path in self.folder.glob("*.records")}
        return {pid: Records.read([path]) for pid, path in found.items()}

    def times(self) -> dict[int, list[tuple[float, int, int]]]:
        """Return when each process had finished which step of which fit."""
        return {int(path.stem): _times(path) for path in self.folder.glob("*.times")}

    # Events

    def _make_events(self) -> None:
        for event in self.events:
            if event.replaced:
                self._wait_at(event.meeting)
                self._wait_for_number(event.meeting)
                self._go(event.meeting)
            there = self._wait_at(event.position)
            if not self._ended.is_set():
                self._make(event, there)

    def _go(self, position: Position) -> None:
        (self.folder / f"go-{position.fit}-{position.step}").touch()

    def _wait_at(self, position: Position) -> list[int]:
        """Return the processes that wait at a step, when all that train are there."""
        at = f"{position.fit}-{position.step}"
        while not self._ended.is_set():
            there = {pid for pid in self._found(f"*.at-{at}") if _is_alive(pid)}
            if there and there >= self._on_the_way(position):
                return sorted(there)
            sleep(_POLL)
        return []

    def _on_the_way(self, position: Position) -> set[int]:
        """Return the processes that train; none is more than one step behind the others."""
        last = {pid: times[-1][1:] for pid, times in self.times().items() if times}
        steps = sorted({one for one in last.values() if one < (position.fit, position.step)})
        return {pid for pid, one in last.items() if one in steps[-2:] and _is_alive(pid)}

    def _wait_for_number(self, position: Position) -> None:
        """Wait until as many processes have joined, or requested it, as there should be."""
        deadline = monotonic() + _PATIENCE
        pattern = f"{position.fit}-{position.step}.number-*"
        while not self._ended.is_set() and monotonic() < deadline:
            found = [int(path.name.partition("number-")[2]) for path in self.folder.glob(pattern)]
            if max(found, default=0) >= self._target:
                return
            sleep(_POLL)

    def _found(self, pattern: str) -> list[int]:
        return [int(path.name.split(".")[0]) for path in self.folder.glob(pattern)]

    def _make(self, event: Event, there: list[int]) -> None:
        """Let the step and the event happen, in their order."""
        kind, pid = event.kind, 0
        if kind in ("add", "remove"):
            kind = "remove" if self._target == self.most else "add"
        elif len(there) > 1:
            pid = there[min(int(event.place * len(there)), len(there) - 1)]
        if kind not in ("add", "remove") and not pid:
            self._go(event.position)  # nobody would be left to continue
            return
        first = kind == "hang" or event.delay < 0
        if not first:
            self._go(event.position)
            sleep(event.delay)
        self._signal(kind, pid)
        if first:
            sleep(abs(event.delay))
            self._go(event.position)
        step = event.position.step - 1
        self._happened.append((Happened(kind, step, pid, None, len(there)), time()))

    def _signal(self, kind: str, pid: int) -> None:
        if kind == "hang":
            (self.folder / f"{pid}.hangs").touch()
        elif pid:
            with suppress(ProcessLookupError):
                os.kill(pid, _SIGNALS[kind])
        else:
            self._target += 1 if kind == "add" else -1
            os.kill(os.getpid(), signal.SIGTTIN if kind == "add" else signal.SIGTTOU)


def _with_seconds(
    event: Happened, since: float, times: dict[int, list[tuple[float, int, int]]]
) -> Happened:
    """Return the event with the seconds until a step was finished that was not finished before."""
    rows = [row for pid, found in times.items() if pid != event.pid for row in found]
    before = max(((fit, step) for when, fit, step in rows if when <= since), default=(0, 0))
    later = [when for when, fit, step in rows if when > since and (fit, step) > before]
    seconds = round(min(later) - since, 3) if later else None
    return Happened(event.kind, event.step, event.pid, seconds, event.processes)


def _times(path: Path) -> list[tuple[float, int, int]]:
    rows = [line.split() for line in path.read_text().split("\n")[:-1]]
    return [(float(when), int(fit), int(step)) for when, fit, step in rows]


def _is_alive(pid: int) -> bool:
    return process_stat(pid)[0] not in ("", "Z", "X")
