"""`Status`: whether a run is alive, how far it got, and when it will end."""

import os
import re
import time
from dataclasses import asdict, dataclass
from typing import Any, Literal, TypeAlias

import numpy as np

from stoker.rundir import files
from stoker.rundir.metrics_index import Columns
from stoker.rundir.safe_folder import SafeFolder
from stoker.storage.lock import newest_lease, parse_owner

State: TypeAlias = Literal["running", "finished", "preempted", "stopped", "failed", "dead"]

_RECORD = re.compile(r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d (?:DEBUG|INFO|WARNING|ERROR) (.*)")
_END = re.compile(r"(.{1,300}) \(step (\d{1,15})\)")
_EPOCH = re.compile(r"epoch (\d{1,9})(?:/(\d{1,9}))?  step (\d{1,15})(?:  |$)")
_LOG_TAIL = 1 << 16
_WRITTEN = (files.METRICS, files.LOG, files.LEDGER, files.ENVIRONMENT, files.CONFIG)
QUIET = 60.0
"""The least number of seconds without a write after which a run elsewhere counts as dead."""


@dataclass(frozen=True, slots=True)
class Status:
    """The state and the progress of a run.

    Attributes:
        state: what it is doing.
        why: the reason it ended, from its log.
        seen: when it last wrote a file, in seconds since 1970.
        step, total: finished steps, and all of them if that is known.
        epoch, epochs: finished epochs, and all of them if that is known.
        eta: seconds until a running run ends, if that is known.
    """

    state: State
    why: str
    seen: float
    step: int
    total: int | None
    epoch: int
    epochs: int | None
    eta: float | None

    def plain(self) -> dict[str, Any]:
        """Return the fields as JSON can hold them."""
        return asdict(self)


UNREADABLE = Status("dead", "the run cannot be read", 0.0, 0, None, 0, None, None)


def status_of(folder: SafeFolder, columns: Columns, config: dict[str, Any]) -> Status:
    """Return the status of a run from its lock, its log and the age of its files."""
    log = folder.tail(files.LOG, _LOG_TAIL).decode(errors="replace")
    last = _last_row(columns)
    written = [*folder.stats(*_WRITTEN), lease_file(folder)]
    seen = max((file.st_mtime for file in written if file is not None), default=0.0)
    state, why = _state(folder, log, seen, columns)
    total, epochs, ended = _limits(log, config)
    step, epoch = int(last["step"]), max(ended, int(last["epoch"]))
    eta = None
    if state == "running" and total is not None:
        pace = seconds_per_step(columns)
        eta = pace * max(0, total - step) if pace is not None else None
    return Status(state, why, seen, step, total, epoch, epochs, eta)


def lease_file(run: SafeFolder) -> os.stat_result | None:
    """Return size and time of the lease of a run, which changes while it runs."""
    folder = run.below(files.CHECKPOINTS, files.LOCK)
    name = newest_lease(folder.files())
    return folder.stat(name) if name is not None else None


def _state(folder: SafeFolder, log: str, seen: float, columns: Columns) -> tuple[State, str]:
    leases = folder.below(files.CHECKPOINTS, files.LOCK)
    owner = parse_owner(leases.head(newest_lease(leases.files()) or "", 4096))
    is_held = owner is not None and not owner.released
    running = owner.is_running() if owner is not None and is_held else None
    if running:
        return "running", ""
    if running is False:
        return "dead", f"{owner} died without logging an end"
    ended = _ending(log)
    if ended is not None and not is_held:
        return ended
    if time.time() - seen < quiet_for(columns):
        return "running", ""
    return "dead", "it has stopped writing"


def quiet_for(columns: Columns) -> float:
    """Return for how long a run may be quiet: ten times its longest pause between rows so far."""
    times = columns.head["time"].view[-50:]
    gaps = np.diff(times[np.isfinite(times)])
    return max(QUIET, 10 * float(gaps.max())) if len(gaps) else 5 * QUIET


def seconds_per_step(columns: Columns) -> float | None:
    """Return the seconds per step over the last rows."""
    times, steps = columns.head["time"].view[-50:], columns.head["step"].view[-50:]
    if len(steps) < 2:
        return None
    done, seconds = steps[-1] - steps[0], times[-1] - times[0]
    return float(seconds / done) if done > 0 and np.isfinite(seconds) and seconds >= 0 else None


def _ending(log: str) -> tuple[State, str] | None:
    """Return the state and the reason from the last record of a log, None if it is not an end."""
    records = [match[1] for line in log.splitlines() if (match := _RECORD.match(line))]
    if not records:
        return None
    if records[-1].startswith("the run failed at"):
        lines = [line for line in log.splitlines() if line.strip()]
        return "failed", lines[-1][:300]
    end = _END.fullmatch(records[-1])
    if end is None:
        return None
    if end[1].startswith("preempted"):
        return "preempted", end[1]
    if end[1].startswith("interrupted"):
        return "stopped", end[1]
    return "finished", "" if end[1] == "finished" else end[1]


def _limits(log: str, config: dict[str, Any]) -> tuple[int | None, int | None, int]:
    """Return the number of steps and epochs of a run, as far as they are known, and epochs done."""
    ended = 0
    total, epochs = _count(config.get("run.max_steps")), _count(config.get("run.epochs"))
    length = 0.0  # steps in the longest epoch: others may have been cut short
    for line in log.splitlines():
        record = _RECORD.match(line)
        match = _EPOCH.match(record[1]) if record else None
        if match is not None and int(match[1]):
            epochs = epochs or (int(match[2]) if match[2] else None)
            length = max(length, int(match[3]) / int(match[1]))
            ended = int(match[1])
    if epochs and length:
        total = min(total or 2**53, round(length * epochs))
    return total, epochs, ended


def _count(value: Any) -> int | None:
    return value if type(value) is int and 0 < value < 2**53 else None


def _last_row(columns: Columns) -> dict[str, float]:
    if not len(columns):
        return {"step": 0.0, "epoch": 0.0}
    return {name: float(np.nan_to_num(columns.head[name].view[-1])) for name in ("step", "epoch")}
