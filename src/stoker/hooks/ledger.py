"""`Ledger`: record what the time of a run is spent on, over all its attempts."""

import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict
from itertools import count
from math import inf
from pathlib import Path
from time import perf_counter
from typing import Any

from stoker.core import dist
from stoker.core.log import get_logger
from stoker.core.process import process_stat
from stoker.data import BatchFeeder
from stoker.events.writers.jsonl import append_line
from stoker.hooks.base.hook import Hook, Priority
from stoker.hooks.checkpoint import Checkpoint
from stoker.hooks.ray_report import in_ray_worker
from stoker.parallel.logical.tree import ranks_of
from stoker.run import Run
from stoker.rundir import files
from stoker.rundir.states import ending_of

_log = get_logger()
_fits = count()


class Ledger(Hook):
    """Records the time of a run in ``ledger.jsonl``, over all its attempts.

    It appends a line every few seconds and at the end, so a kill loses no more than that. ``stoker
    report --goodput RUN`` adds the lines up. Each line has the step, the limits of the fit, and the
    seconds that this attempt has spent so far on:

        startup     everything before its first epoch, from the start of the process if known
        train       epochs, without the kinds below
        data        waiting for batches
        save        waiting for checkpoints, not writing them in the background
        eval        validation
        other       everything between epochs and after the last one

    In an elastic run there is also ``members_lost``: work that was cut when a process was lost, and
    forming groups.

    Only rank 0 writes. Without a run folder it does nothing.

    Args:
        checkpoint: the hook whose saves to measure; without it, they count as `train`.
        every: seconds between two lines.
    """

    priority = Priority.REPORT
    same_on_all_ranks = True
    writes = True

    def __init__(self, checkpoint: Checkpoint | None = None, *, every: float = 5.0) -> None:
        if every < 0:
            raise ValueError(f"every must be a number of seconds, 0 or more, got {every}")
        self._checkpoint = checkpoint
        self._every = every
        self._due = inf
        self._path: Path | None = None
        self._generation = 0  # up to which changes of members are written
        self._before: dict[str, float] = {}  # what the rank 0 before this one spent more
        self._reset()

    # Measuring

    def before_run(self, run: Run) -> None:
        """Start the clock of an attempt; for the first fit, when the process started."""
        if run.task == "fit":
            self._reset()
            self._started -= _process_age() if next(_fits) == 0 else 0.0

    def _reset(self) -> None:
        self._started = perf_counter()
        self._startup: float | None = None
        self._trained = self._evaluated = 0.0
        self._epoch: tuple[float, float] | None = None  # when it started, and `_overhead` by then
        self._val_started: float | None = None
        self._feed: BatchFeeder | None = None
        self._saved_before = self._checkpoint.waited if self._checkpoint is not None else 0.0
        members = dist.members()
        self._lost_before = members.lost_seconds if members is not None else 0.0

    def before_train(self, run: Run) -> None:
        """Write the first line: the process that starts, and at which step."""
        if run.dir is None or not dist.is_main():
            return
        self._path = run.dir / files.LEDGER
        self._is_new = not self._path.exists()
        self._id = os.urandom(4).hex()
        about = {"pid": os.getpid(), "processes": dist.world_size()}
        restarts = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        if restarts.isdecimal() and int(restarts):
            about["restarts"] = int(restarts)
        self._write(run, event="begin", **about)

    def before_epoch(self, run: Run) -> None:
        """Start the time of an epoch."""
        now = perf_counter()
        self._feed = run.feeder
        assert self._feed is not None
        self._feed.timed = True
        overhead = sum(self._overhead(now).values())
        if self._startup is None:
            self._startup = now - self._started - overhead
        self._epoch = (now, overhead)

    def after_step(self, run: Run) -> None:
        """Write a line if one is due."""
        if dist.members() is not None:
            self._record_members(run)
        if perf_counter() >= self._due:
            self._write(run)

    after_val_step = after_step

    def after_train_epoch(self, run: Run) -> None:
        """Stop the time of an epoch."""
        self._trained = self._train(perf_counter())
        self._epoch = None

    def before_val(self, run: Run) -> None:
        """Start the time of a validation."""
        self._val_started = perf_counter()

    def after_val(self, run: Run) -> None:
        """Stop the time of a validation."""
        assert self._val_started is not None
        self._evaluated += perf_counter() - self._val_started
        self._val_started = None

    def after_run(self, run: Run) -> None:
        """Write the last line: why the attempt ended. Without a single step, remove the file."""
        if self._path is None or run.task != "fit" or not dist.is_main():
            return
        if run.error is not None and run.step == 0 and self._is_new:
            with suppress(OSError):
                self._path.unlink()
                self._path.parent.rmdir()  # unless other hooks have written files
        else:
            state, why = ending_of(run.stop_reason, run.error)
            self._write(run, event="end", end=state, **({"why": why} if why else {}))
        self._path, self._due = None, inf
        self._reset()

    def _record_members(self, run: Run) -> None:
        """Write how the members of an elastic run have changed since the last step."""
        members = dist.members()
        assert members is not None
        if run.dir is None or not dist.is_main():
            return
        if self._path is None and run.task == "fit":
            self._continue(run.dir / files.LEDGER)
        for change in members.changes:
            if change.generation > self._generation:
                row = asdict(change)
                row["seconds"] = round(max(0.0, time.time() - row.pop("since")), 3)
                row["ranks"] = _ranks_of(len(change.members), run.engine.layout.logical_ranks or 0)
                self._write(run, event="members", **row)
                self._generation = change.generation

    def _continue(self, path: Path) -> None:
        """Continue the lines of the process that was rank 0 before this one."""
        rows = [*_complete_rows(path)]
        last = rows[-1] if rows else {}
        for row in rows:
            if row.get("event") == "members" and row["attempt"] == last["attempt"]:
                self._generation = row["generation"]
        self._path, self._is_new, self._due = path, False, 0.0
        self._id = last.get("attempt", os.urandom(4).hex())
        self._before = {kind: last.get(kind, 0.0) - spent for kind, spent in self._spent().items()}

    # Writing

    def _overhead(self, now: float) -> dict[str, float]:
        """Return the seconds of this attempt that were not training, by kind."""
        saved = self._checkpoint.waited if self._checkpoint is not None else 0.0
        evaluating = now - self._val_started if self._val_started is not None else 0.0
        found = {
            "data": self._feed.waited if self._feed is not None else 0.0,
            "save": saved - self._saved_before,
            "eval": self._evaluated + evaluating,
        }
        if (members := dist.members()) is not None:
            found["members_lost"] = members.lost_seconds - self._lost_before
        return found

    def _train(self, now: float) -> float:
        if self._epoch is None:
            return self._trained
        started, overhead = self._epoch
        return self._trained + now - started - (sum(self._overhead(now).values()) - overhead)

    def _spent(self) -> dict[str, float]:
        """Return the seconds that this process has spent so far, by kind."""
        now = perf_counter()
        overhead, train = self._overhead(now), self._train(now)
        total = now - self._started
        startup = total - sum(overhead.values()) if self._startup is None else self._startup
        spent = {"startup": startup, "train": train, **overhead}
        return {**spent, "other": total - sum(spent.values())}

    def _write(self, run: Run, **about: Any) -> None:
        """Append a line. If that fails, warn once and stop writing; the run continues."""
        if self._path is None:
            return
        now = perf_counter()
        spent = {kind: one + self._before.get(kind, 0.0) for kind, one in self._spent().items()}
        head = {"time": round(time.time(), 3), "attempt": self._id, **about, "step": run.step}
        head |= {"epoch": run.epoch, "epochs": run.max_epochs, "total_steps": run.final_step}
        seconds = {kind: round(max(0.0, value), 4) for kind, value in spent.items()}
        try:
            append_line(self._path, json.dumps(head | seconds))
            self._due = now + self._every
        except OSError as error:
            _log.warning(
                f"'{self._path}' cannot be written: {error.strerror}; goodput is not recorded"
            )
            self._path, self._due = None, inf


def _complete_rows(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the rows of a ledger, without those that a kill has cut."""
    for line in path.read_bytes().splitlines() if path.exists() else ():
        with suppress(ValueError):
            yield json.loads(line)


def _process_age() -> float:
    """Return the seconds since this process started, 0 if unknown or meaningless.

    An interactive session, or a worker that a cluster keeps ready, starts long before it trains.
    """
    if hasattr(sys, "ps1") or "ipykernel" in sys.modules or in_ray_worker():
        return 0.0
    try:
        started = int(process_stat(os.getpid())[1]) / os.sysconf("SC_CLK_TCK")
        return max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - started)
    except (OSError, ValueError, AttributeError):
        return 0.0


def _ranks_of(members: int, total: int) -> list[list[int]]:
    """Return the first and the last logical rank of each member."""
    own = [ranks_of(number, members, total) for number in range(members)]
    return [[ranks[0], ranks[-1]] for ranks in own if ranks]
