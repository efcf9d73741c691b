"""Run one attempt at a training in forked processes, and kill one of them.

Processes are forked from this one, which has imported torch already (POSIX only). Their random
number generators are reset as in a new process. If the training does not seed them, the first
attempt starts like the reference it is compared with, and later attempts start differently, as
restarted processes do.
"""

import faulthandler
import multiprocessing
import os
import random
import signal
import sys
import traceback
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from time import monotonic
from typing import Literal, NamedTuple, TypeAlias, get_args

import numpy as np
import torch

from stoker.config import ConfigError
from stoker.core import dist
from stoker.core.errors import did_you_mean
from stoker.run import Run
from stoker.testing.record import Position, Recorder, Records
from stoker.testing.watcher import watching

Kind: TypeAlias = Literal["step", "save", "eval", "data"]
KINDS: tuple[str, ...] = get_args(Kind)

_POINTS = {
    "step": ("after_forward", "before_update", "after_step"),
    "eval": ("before_val", "after_val_step", "after_val"),
    "data": ("fetch",),
    "save": (
        *("partial-made", "file-written:1", "file-written:3", "file-synced:1", "file-synced:4"),
        *("before-manifest", "manifest-written", "before-rename", "renamed", "published"),
        "verified",
    ),
}
"""The points of each kind; those of a save are from `stoker.storage.crash_points`."""

_SAVE_POINTS_OF_OTHER_RANKS = ("partial-made", "file-written:1", "file-synced:1", "file-synced:2")
"""The points of a save on ranks other than 0, which only write their own files."""

_KILL_AT_VARIABLE = "STOKER_KILL_AT"


@dataclass(frozen=True)
class Kill:
    """A moment to kill a rank: the first of its kind at or after a position."""

    position: Position
    kind: str
    point: str
    rank: int = 0

    def __str__(self) -> str:
        """Return a description."""
        descriptions = {
            "step": f"during a step, at {self.point}",
            "eval": f"during a validation, at {self.point}",
            "data": "while fetching a batch",
            "save": f"during a save, at {self.point}",
        }
        return descriptions[self.kind]


def check_kinds(kinds: Sequence[str]) -> None:
    """Check the kinds of moments.

    Raises:
        ValueError: A kind is unknown, or there is none.
    """
    for kind in kinds:
        if kind not in KINDS:
            near = did_you_mean(kind, KINDS)
            raise ValueError(f"unknown kind of moment {kind!r}{near} (kinds: {', '.join(KINDS)})")
    if not kinds:
        raise ValueError(f"no kind of moment was given: pass one or more of {', '.join(KINDS)}")


def plan_kills(
    references: Sequence[Records], count: int, kinds: Sequence[str], seed: int
) -> list[Kill]:
    """Return kills spread over the steps of the reference run.

    Args:
        references: The records of the reference, one for each process.
        count: How many kills to plan.
        kinds: The kinds of moments, used in turn.
        seed: The same seed gives the same kills.
    """
    steps, evals = sorted(references[0].steps), sorted(references[0].evals)
    possible = [kind for kind in kinds if kind != "eval" or evals]
    if not steps or not possible:
        return []
    rng = random.Random(seed)
    kills = []
    for number in range(count):
        low, high = number * len(steps) // count, (number + 1) * len(steps) // count
        position = steps[rng.randrange(low, max(high, low + 1))]
        kind = possible[number % len(possible)]
        if kind == "eval":
            position = next((later for later in evals if later >= position), evals[-1])
        rank = rng.randrange(len(references)) if len(references) > 1 else 0
        point = rng.choice(_points(kind, rank, references[rank]))
        kills.append(Kill(position, kind, point, rank))
    return sorted(kills, key=lambda kill: kill.position)


def _points(kind: str, rank: int, reference: Records) -> Sequence[str]:
    """Return the points of a kind that a rank reaches."""
    if kind == "save" and rank > 0:
        return _SAVE_POINTS_OF_OTHER_RANKS
    return [p for p in _POINTS[kind] if p != "after_forward" or reference.has_losses]


class KillableRecorder(Recorder):
    """Record a training, and at the moment of a kill, wait to be killed from outside.

    For a kill during a save, the commit protocol kills its own process with the same signal.

    Args:
        path: The file of the records.
        folder: The folder that must contain the checkpoints of the run.
        kill: The moment, or None to only record.
        on_reached: Called when the moment is reached.
        wait: Blocks until the process is killed.
    """

    def __init__(
        self,
        path: Path,
        folder: Path,
        kill: Kill | None,
        on_reached: Callable[[], None],
        wait: Callable[[], None],
    ) -> None:
        super().__init__(path, folder)
        self._kill, self._on_reached, self._wait = kill, on_reached, wait
        self._reached = False

    def before_fetch(self, run: Run) -> None:
        """Report the moment and continue: the signal arrives during the fetch or just after."""
        if self._is_due("fetch", run.step + 1):
            self._on_reached()
            self._reached = True

    def after_fetch(self, run: Run) -> None:
        """Wait for a signal that did not arrive during the fetch."""
        if self._reached:
            self._wait()

    def after(self, point: str, run: Run) -> None:
        """Record, then wait if this is the moment of the kill."""
        super().after(point, run)
        if run.task != "fit" or self._kill is None or point == "after_run":
            return
        if self._kill.kind == "save" and point == "before_step" and self._is_reached(run.step + 1):
            os.environ.setdefault(_KILL_AT_VARIABLE, self._kill.point)
        counted = point.startswith(("after_step", "before_val", "after_val"))
        if self._is_due(point, run.step if counted else run.step + 1):
            self._on_reached()
            self._wait()

    def _is_due(self, point: str, step: int) -> bool:
        return self._kill is not None and self._kill.point == point and self._is_reached(step)

    def _is_reached(self, step: int) -> bool:
        assert self._kill is not None
        position = self._kill.position
        return (self.fit, step) >= (position.fit, position.step)


TrainFunction: TypeAlias = Callable[[Path], object]
"""A function that builds a training and runs it in the given run folder."""

_TORCH_SEED = 67280421310721
"""The seed of torch in a new process."""

_LOG_TAIL = 15
_EXIT_SECONDS = 2.0
"""How long to wait for the exit of a process whose death other ranks have noticed."""


@dataclass(frozen=True)
class Failure:
    """An error in the training."""

    text: str
    config_errors: tuple[str, ...] = ()
    """The messages of a `ConfigError`."""

    rank: int = 0
    """The rank that failed."""


class _Child(NamedTuple):
    process: BaseProcess
    pipe: Connection


@dataclass(frozen=True)
class Attempt:
    """A training, its run folder, and the files of its records and logs."""

    train: TrainFunction
    run_dir: Path
    number: int
    threads: int | None = None
    processes: int = 1

    def records(self, rank: int = 0) -> Path:
        """Return the file with the records of a rank."""
        return self._file(rank, "records")

    def log(self, rank: int = 0) -> Path:
        """Return the file with the output of a rank."""
        return self._file(rank, "log")

    def _file(self, rank: int, suffix: str) -> Path:
        infix = f".rank{rank}" if self.processes > 1 else ""
        return self.run_dir.parent / f"attempt-{self.number:03}{infix}.{suffix}"

    def log_tail(self, rank: int = 0) -> str:
        """Return the last lines of the output of a rank."""
        log = self.log(rank)
        lines = log.read_text(errors="replace").splitlines() if log.exists() else []
        return "".join(f"\n  {line}" for line in lines[-_LOG_TAIL:])

    def run(self, kill: Kill | None = None, limit: float | None = None) -> bool | Failure:
        """Run until the training ends, is killed, or takes longer than ``limit`` seconds.

        A kill ends one process first and then the others, as a launcher ends a job with a dead
        process.

        Returns:
            Whether the training reached its end, or the failure if anything but the kill ended it.
        """
        self.run_dir.parent.mkdir(parents=True, exist_ok=True)
        address = _rendezvous() if self.processes > 1 else {}
        children: list[_Child] = []
        try:
            for rank in range(self.processes):
                own = kill if kill is not None and kill.rank == rank else None
                children.append(self._start(rank, own, address))
            return self._watch(children, kill, limit)
        finally:
            first = children[kill.rank : kill.rank + 1] if kill is not None else []
            for process, _ in [*first, *children]:
                process.kill()
            for process, pipe in children:
                process.join()
                pipe.close()

    def _start(self, rank: int, kill: Kill | None, address: dict[str, str]) -> _Child:
        context = multiprocessing.get_context("fork")
        ours, theirs = context.Pipe()
        process = context.Process(target=self._in_child, args=(rank, theirs, kill, address))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12: fork with threads
            process.start()
        theirs.close()
        return _Child(process, ours)

    def _watch(
        self, children: list[_Child], kill: Kill | None, limit: float | None
    ) -> bool | Failure:
        ends = monotonic() + limit if limit is not None else None
        running = {child.pipe: rank for rank, child in enumerate(children)}
        while running:
            ready = wait(list(running), max(0.0, ends - monotonic()) if ends is not None else None)
            if not ready:
                return Failure(f"the training did not end within {limit:.0f} s")
            for pipe in ready:
                rank = running.pop(pipe)  # type: ignore[call-overload]
                message = _receive(children[rank])
                failed = isinstance(message, Failure)
                if message == "reached" or (failed and _died_in_save(children, kill)):
                    return False
                if isinstance(message, Failure):
                    prefix = f"rank {rank}: " if self.processes > 1 else ""
                    return replace(message, text=prefix + message.text, rank=rank)
        for rank, (process, _) in enumerate(children):
            process.join()
            if process.exitcode:
                return Failure(f"the process ended with exit code {process.exitcode}", rank=rank)
        return True

    def _in_child(
        self, rank: int, pipe: Connection, kill: Kill | None, address: dict[str, str]
    ) -> None:
        _redirect_output(self.log(rank))
        _reset_process_state(self.number, rank, self.threads)
        if self.processes > 1:
            os.environ |= _rank_environment(rank, self.processes) | address
        watcher = KillableRecorder(
            self.records(rank),
            self.run_dir,
            kill,
            on_reached=lambda: pipe.send("reached"),
            wait=signal.pause,
        )
        message: str | Failure = "done"
        try:
            with watching(watcher):
                self.train(self.run_dir)
            dist.disconnect()
        except ConfigError as error:
            message = Failure(str(error), tuple(error.faults))
        except SystemExit as error:
            if error.code not in (None, 0):
                message = Failure(f"the training exited with code {error.code}")
        except BaseException as error:
            traceback.print_exc()
            message = Failure("".join(traceback.format_exception_only(error)).strip())
        if watcher.fit < 0 and message == "done":
            message = Failure("nothing was trained: Trainer.fit was not called")
        os.environ.pop("STOKER_KILL_AT", None)
        pipe.send(message)


def _receive(child: _Child) -> str | Failure:
    """Return the message of a child, or a failure if it ended without one."""
    try:
        message: str | Failure = child.pipe.recv()
        return message
    except EOFError:
        child.process.join()
        return Failure(f"the process ended with exit code {child.process.exitcode}")


def _died_in_save(children: list[_Child], kill: Kill | None) -> bool:
    """Return whether a kill during a save was carried out; other ranks may notice it first."""
    if kill is None or kill.kind != "save":
        return False
    process = children[kill.rank].process
    process.join(_EXIT_SECONDS)
    return process.exitcode == -signal.SIGKILL


def _rendezvous() -> dict[str, str]:
    """Return the environment variables of a free rendezvous address on this machine."""
    return {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(dist.free_port())}


def _rank_environment(rank: int, count: int) -> dict[str, str]:
    """Return the environment variables that a launcher sets for a rank."""
    variables = {"RANK": str(rank), "WORLD_SIZE": str(count)}
    return variables | {f"LOCAL_{name}": value for name, value in variables.items()}


def _redirect_output(log: Path) -> None:
    """Redirect standard output and error to a file, for worker processes too."""
    sys.stdout.flush()
    sys.stderr.flush()
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    os.dup2(file, 1)
    os.dup2(file, 2)
    sys.stdout = os.fdopen(1, "w", buffering=1, closefd=False)
    sys.stderr = os.fdopen(2, "w", buffering=1, closefd=False)
    faulthandler.enable(sys.stderr)


def _reset_process_state(number: int, rank: int, threads: int | None) -> None:
    os.environ.pop("STOKER_KILL_AT", None)
    random.seed(number + 1000 * rank)
    np.random.seed(number + 1000 * rank)
    torch.manual_seed(_TORCH_SEED)
    if threads is not None:
        torch.set_num_threads(threads)
