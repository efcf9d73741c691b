"""`Ledger`: what the time of a run goes to, over all its attempts."""

import json
import os
import sys
import time
from contextlib import suppress
from itertools import count
from math import inf
from pathlib import Path
from time import perf_counter
from typing import Any

from stoker.core import dist
from stoker.core.log import get_logger
from stoker.data import BatchFeeder
from stoker.hooks.base.hook import Hook, Priority
from stoker.hooks.checkpoint import Checkpoint
from stoker.hooks.ray_report import in_ray_worker
from stoker.run import Run
from stoker.rundir import files

_log = get_logger()
_fits = count()


class Ledger(Hook):
    """Keeps account of a run's time in ``ledger.jsonl`` of its folder, over all its attempts.

    A line is appended each ``every`` seconds and at the end, so that a kill loses no more than
    that; ``stoker report --goodput RUN`` adds them up. Each line has the seconds that this attempt
    has spent so far on:

        startup     until its first epoch, from the start of the process where that is known
        train       epochs, but for what follows
        data        waiting for batches
        save        waiting for checkpoints; writing beside the training is no wait
        eval        validations
        other       between epochs, and after the last one

    The first process writes for all. Without a run folder it does nothing.

    Args:
        checkpoint: the hook whose saves are waited for; without it, their time is that of `train`.
        every: seconds between two lines.
    """

    priority = Priority.REPORT
    same_on_all_ranks = True
    writes = True

    def __init__(self, checkpoint: Checkpoint | None = None, *, every: float = 5.0) -> None:
        if every < 0:
            raise ValueError(f"every is a number of seconds from 0, got {every}")
        self._checkpoint = checkpoint
        self._every = every
        self._due = inf
        self._path: Path | None = None
        self._forget()

    # What is measured

    def before_run(self, run: Run) -> None:
        """An attempt begins; the first one of a process began with the process."""
        if run.task == "fit":
            self._forget()
            self._began -= _process_age() if next(_fits) == 0 else 0.0

    def _forget(self) -> None:
        self._began = perf_counter()
        self._startup: float | None = None
        self._trained = self._evaluated = 0.0
        self._epoch: tuple[float, float] | None = None  # when it began, and what was lost by then
        self._val_began: float | None = None
        self._feed: BatchFeeder | None = None
        self._saved_before = self._checkpoint.waited if self._checkpoint is not None else 0.0

    def before_train(self, run: Run) -> None:
        """The first line: who begins, and where."""
        if run.dir is None or not dist.is_main():
            return
        self._path = run.dir / files.LEDGER
        self._is_new = not self._path.exists()
        self._id = os.urandom(4).hex()
        about = {"pid": os.getpid(), "processes": dist.world_size()}
        self._note(run, event="begin", **about)

    def before_epoch(self, run: Run) -> None:
        """Training begins, or goes on."""
        now = perf_counter()
        self._feed = run.feeder
        assert self._feed is not None
        self._feed.timed = True
        lost = sum(self._lost(now).values())
        if self._startup is None:
            self._startup = now - self._began - lost
        self._epoch = (now, lost)

    def after_step(self, run: Run) -> None:
        """A line, now and then."""
        if perf_counter() >= self._due:
            self._note(run)

    def after_train_epoch(self, run: Run) -> None:
        """What follows is no training."""
        self._trained = self._train(perf_counter())
        self._epoch = None

    def before_val(self, run: Run) -> None:
        """A validation begins."""
        self._val_began = perf_counter()

    def after_val_step(self, run: Run) -> None:
        """A line, now and then."""
        if perf_counter() >= self._due:
            self._note(run)

    def after_val(self, run: Run) -> None:
        """A validation is over."""
        assert self._val_began is not None
        self._evaluated += perf_counter() - self._val_began
        self._val_began = None

    def after_run(self, run: Run) -> None:
        """The last line: why the attempt ended. One that made no step leaves nothing behind."""
        if self._path is None or run.task != "fit":
            return
        if run.error is not None and run.step == 0 and self._is_new:
            with suppress(OSError):
                self._path.unlink()
                self._path.parent.rmdir()  # unless others have written beside it
        else:
            self._note(run, event="end", **_end_of(run))
        self._path, self._due = None, inf
        self._forget()

    # Lines

    def _lost(self, now: float) -> dict[str, float]:
        """The seconds of this attempt that no training was done in, by what they went to."""
        saved = self._checkpoint.waited if self._checkpoint is not None else 0.0
        looking = now - self._val_began if self._val_began is not None else 0.0
        return {
            "data": self._feed.waited if self._feed is not None else 0.0,
            "save": saved - self._saved_before,
            "eval": self._evaluated + looking,
        }

    def _train(self, now: float) -> float:
        if self._epoch is None:
            return self._trained
        began, lost = self._epoch
        return self._trained + now - began - (sum(self._lost(now).values()) - lost)

    def _note(self, run: Run, **about: Any) -> None:
        """Append a line; a ledger that cannot be written must not end the run."""
        if self._path is None:
            return
        now = perf_counter()
        lost, train = self._lost(now), self._train(now)
        whole = now - self._began
        startup = whole - sum(lost.values()) if self._startup is None else self._startup
        spent = {"startup": startup, "train": train, **lost}
        spent["other"] = whole - sum(spent.values())
        head = {"time": round(time.time(), 3), "attempt": self._id, **about, "step": run.step}
        seconds = {kind: round(max(0.0, value), 4) for kind, value in spent.items()}
        try:
            _append(self._path, json.dumps(head | seconds))
            self._due = now + self._every
        except OSError as error:
            _log.warning(f"'{self._path}' cannot be written: {error.strerror}; it is left as it is")
            self._path, self._due = None, inf


def _append(path: Path, line: str) -> None:
    """Add a line, in one piece, after what a kill may have left without an end."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab+", buffering=0) as file:
        torn = file.tell() > 0 and _last_byte(file) != b"\n"
        file.write(b"\n" * torn + line.encode() + b"\n")


def _last_byte(file: Any) -> bytes:
    file.seek(-1, os.SEEK_END)
    return bytes(file.read(1))


def _end_of(run: Run) -> dict[str, str]:
    if run.error is not None:
        text = str(run.error).partition("\n")[0][:200]
        return {"end": "failed", "why": f"{type(run.error).__name__}: {text}"}
    if run.stop_reason is not None:
        return {"end": "stopped", "why": run.stop_reason}
    return {"end": "finished"}


def _process_age() -> float:
    """Seconds since this process began, 0 where that says nothing or is not known.

    A person at a prompt, and a cluster that keeps processes ready, begin long before they train.
    """
    if hasattr(sys, "ps1") or "ipykernel" in sys.modules or in_ray_worker():
        return 0.0
    try:
        words = Path("/proc/self/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
        began = int(words[19]) / os.sysconf("SC_CLK_TCK")
        return max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - began)
    except (OSError, ValueError, IndexError, AttributeError):
        return 0.0
