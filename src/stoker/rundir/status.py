"""`Status`: whether a run is alive, how far it got, and when it will end."""

import math
import os
import re
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from itertools import takewhile
from typing import Any, get_args

import numpy as np

from stoker.checkpoint.format.names import MANIFEST, step_in_name
from stoker.rundir import files
from stoker.rundir.metrics_index import Columns
from stoker.rundir.safe_folder import SafeFolder, parse_json
from stoker.rundir.states import Ending, State, ending_of
from stoker.storage.lock import newest_lease, parse_owner

_RECORD = re.compile(r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d (?:DEBUG|INFO|WARNING|ERROR) (.*)")
_END = re.compile(r"(.{1,300}) \(step (\d{1,15})\)")
_EPOCH = re.compile(r"epoch (\d{1,9})(?:/(\d{1,9}))?  step (\d{1,15})(?:  |$)")
_LOG_TAIL = 1 << 16
_LEDGER_TAIL = 1 << 12
_LARGEST_MANIFEST = 1 << 26
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


@dataclass
class _Log:
    """What the end of a log says: the last epoch and its limit, and how the run ended."""

    ending: Ending | None = None
    step: int = 0
    epoch: int = 0
    epochs: int | None = None
    longest_epoch: float = 0.0  # in steps; others may have been cut short
    results: str = ""  # of the last epoch


@dataclass(frozen=True)
class _Ledger:
    """What the last line of a ledger says; nothing for a run without one."""

    time: float = -math.inf
    step: int = 0
    epoch: int | None = None
    epochs: int | None = None
    total: int | None = None
    ending: Ending | None = None


def last_epoch(folder: SafeFolder) -> dict[str, float]:
    """Return the results of the last finished epoch as the log states them, to four digits."""
    found = {}
    log = _read_log(folder.tail(files.LOG, _LOG_TAIL).decode(errors="replace"))
    for cell in log.results.split("  "):
        name, _, value = cell.strip().rpartition(" ")
        with suppress(ValueError):  # the last cell is the duration of the epoch
            found[name.strip()] = float(value)
    return found


def status_of(folder: SafeFolder, columns: Columns, config: dict[str, Any]) -> Status:
    """Return the status of a run from its lock, its log, its ledger and the age of its files."""
    log = _read_log(folder.tail(files.LOG, _LOG_TAIL).decode(errors="replace"))
    ledger = _read_ledger(folder.tail(files.LEDGER, _LEDGER_TAIL))
    if log == _Log() and ledger == _Ledger() and not len(columns):
        ledger = _read_checkpoint(folder, config)
    written = [*folder.stats(*_WRITTEN), lease_file(folder)]
    seen = max((file.st_mtime for file in written if file is not None), default=0.0)
    state, why = _state(folder, _ending(folder, log, ledger), seen, columns)
    step, epoch = _progress(columns, log, ledger)
    epochs = ledger.epochs or log.epochs or _count(config.get("run.epochs"))
    total = ledger.total or _estimate(log, config, epochs)
    if state == "finished":
        total = step or total
    total = total if total is None or total >= step else None
    epochs = epochs if epochs is None or epochs >= epoch else None
    eta = None
    if state == "running" and total is not None:
        pace = seconds_per_step(columns)
        eta = pace * (total - step) if pace is not None else None
    return Status(state, why, seen, step, total, epoch, epochs, eta)


def lease_file(run: SafeFolder) -> os.stat_result | None:
    """Return size and time of the lease of a run, which changes while it runs."""
    folder = run.below(files.CHECKPOINTS, files.LOCK)
    name = newest_lease(folder.files())
    return folder.stat(name) if name is not None else None


def _state(
    folder: SafeFolder, ending: Ending | None, seen: float, columns: Columns
) -> tuple[State, str]:
    leases = folder.below(files.CHECKPOINTS, files.LOCK)
    owner = parse_owner(leases.head(newest_lease(leases.files()) or "", 4096))
    is_held = owner is not None and not owner.released
    running = owner.is_running() if owner is not None and is_held else None
    if running:
        return "running", ""
    if running is False:
        return "dead", f"{owner} died without logging an end"
    if ending is not None and not is_held:
        return ending
    if time.time() - seen < quiet_for(columns):
        return "running", ""
    return "dead", "it has stopped writing"


def _ending(folder: SafeFolder, log: _Log, ledger: _Ledger) -> Ending | None:
    """Return how the last attempt ended, None if neither log nor ledger says so."""
    if log.ending is None or ledger.ending is not None:
        return log.ending or ledger.ending
    at_log, at_ledger = folder.stats(files.LOG, files.LEDGER)
    begun_again = at_log and at_ledger and at_ledger.st_mtime > at_log.st_mtime
    return None if begun_again else log.ending


def _progress(columns: Columns, log: _Log, ledger: _Ledger) -> tuple[int, int]:
    """Return the finished steps and epochs by whichever file is the newest."""
    row = dict.fromkeys(("time", "step", "epoch"), -math.inf)
    if len(columns):
        row = {name: float(columns.head[name].view[-1]) for name in row}
    epoch = max(log.epoch, int(np.nan_to_num(row["epoch"], neginf=0.0)))
    if ledger.epoch is not None and ledger.time > row["time"]:
        epoch = ledger.epoch
    if log.ending is not None and log.step:
        return log.step, epoch
    step = ledger.step if ledger.time > row["time"] else row["step"]
    return int(np.nan_to_num(step, neginf=log.step)), epoch


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


def _read_log(text: str) -> _Log:
    found, lines = _Log(), text.splitlines()
    for number, line in enumerate(lines):
        record = _RECORD.match(line)
        if record is None:
            continue
        if epoch := _EPOCH.match(record[1]):
            _add_epoch(found, *(int(count) if count else None for count in epoch.groups()))
            found.results = record[1][epoch.end() :]
        elif end := _END.fullmatch(record[1]):
            reason = None if end[1] == "finished" else end[1]
            found.ending, found.step = ending_of(reason), int(end[2])
        elif record[1].startswith("the run failed at"):
            found.ending, found.step = Ending("failed", _error_below(lines[number:])), 0
        elif record[1].startswith("resuming from"):
            found.ending = None
    return found


def _add_epoch(found: _Log, epoch: int | None, epochs: int | None, step: int | None) -> None:
    if epoch and step is not None:
        found.ending, found.epoch, found.epochs, found.step = None, epoch, epochs, step
        found.longest_epoch = max(found.longest_epoch, step / epoch)


def _error_below(lines: list[str]) -> str:
    """Return the error in the traceback that follows a record, without the notes below it."""
    below = [lines[0], *takewhile(lambda line: not _RECORD.match(line), lines[1:])]
    below = [line for line in below if line.strip()]
    starts = [at for at, line in enumerate(below) if line.startswith("Traceback (most recent")]
    errors = [line for line in below[starts[-1] + 1 :] if line[0] != " "] if starts else []
    return (errors[0] if errors else below[-1])[:300]


def _read_ledger(tail: bytes) -> _Ledger:
    """Return what the last complete line says; a torn or foreign one says nothing."""
    try:
        row = parse_json(tail.rpartition(b"\n")[0].rpartition(b"\n")[2])
        when, step = float(row["time"]), _count(row["step"]) or 0
        ending = Ending(row["end"], str(row.get("why", ""))) if row.get("event") == "end" else None
        if ending is not None and ending.state not in get_args(State):
            ending = None
        epochs, total = (_count(row.get(name)) for name in ("epochs", "total_steps"))
        epoch = _count(row.get("epoch")) or 0 if "epoch" in row else None
        return _Ledger(when, step, epoch, epochs, total, ending)
    except (ValueError, TypeError, KeyError, AttributeError):
        return _Ledger()


def _read_checkpoint(run: SafeFolder, config: dict[str, Any]) -> _Ledger:
    """Return what the newest checkpoint says of a run that keeps neither log nor ledger."""
    folder = run.below(files.CHECKPOINTS)
    newest = max(folder.folders(), key=lambda name: step_in_name(name) or -1, default="")
    found = folder.below(newest).stat(MANIFEST) if step_in_name(newest) is not None else None
    if found is None:
        return _Ledger()
    try:
        manifest = parse_json(folder.below(newest).read(MANIFEST, _LARGEST_MANIFEST))
        step, epoch = int(manifest["step"]), int(manifest["info"].get("epoch", 0))
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return _Ledger()
    epochs, total = (_count(config.get(f"run.{name}")) for name in ("epochs", "max_steps"))
    is_complete = epoch >= (epochs or math.inf) or step >= (total or math.inf)
    ending = Ending("finished", "") if is_complete else Ending("stopped", "it keeps no log of why")
    return _Ledger(found.st_mtime, step, epoch, epochs, total, ending)


def _estimate(log: _Log, config: dict[str, Any], epochs: int | None) -> int | None:
    """Return the number of steps of a run by its limits and its longest epoch so far."""
    total = _count(config.get("run.max_steps"))
    if epochs and log.longest_epoch:
        total = min(total or 2**53, round(log.longest_epoch * epochs))
    return total


def _count(value: Any) -> int | None:
    return value if type(value) is int and 0 < value < 2**53 else None
