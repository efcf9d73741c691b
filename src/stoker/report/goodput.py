"""Goodput: how much of a run's time made it better, and what the rest went to."""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

KINDS = {
    "train": "useful training",
    "again": "work done again",
    "startup": "start-up",
    "data": "waiting for data",
    "save": "waiting for checkpoints",
    "eval": "evaluation",
    "other": "other",
}
"""What time goes to, and how people say it."""

_MEASURED = tuple(kind for kind in KINDS if kind != "again")
_LONGEST = 1e12


class Entry(NamedTuple):
    """Where an attempt was, and the seconds it had spent by then, by kind."""

    time: float
    step: int
    spent: Mapping[str, float]


@dataclass
class Attempt:
    """One start of a run, as the ledger tells it."""

    id: str
    entries: list[Entry] = field(default_factory=list)
    pid: int | None = None
    processes: int | None = None
    end: str | None = None
    why: str = ""

    @property
    def began(self) -> float:
        """When its process began, in seconds since 1970."""
        first = self.entries[0]
        return first.time - sum(first.spent.values())

    @property
    def seconds(self) -> float:
        """How long it is known to have lived."""
        return sum(self.entries[-1].spent.values())

    @property
    def first_step(self) -> int:
        """The step it went on from."""
        return self.entries[0].step

    @property
    def last_step(self) -> int:
        """The last step it is known to have made."""
        return self.entries[-1].step


class Loss(NamedTuple):
    """Time that made the run no better."""

    kind: str
    seconds: float
    share: float

    @property
    def name(self) -> str:
        """What people call it."""
        return KINDS[self.kind]


@dataclass
class Goodput:
    """The time of a run over all its attempts.

    Args:
        attempts: oldest first.
        seconds: by kind, as in `KINDS`.
        steps_again: steps that were lost with an attempt, and made again.
    """

    attempts: Sequence[Attempt]
    seconds: Mapping[str, float]
    steps_again: int

    @property
    def whole(self) -> float:
        """Seconds of all attempts; the time between two of them is nobody's."""
        return sum(self.seconds.values())

    @property
    def share(self) -> float:
        """The part of the time that made the run better, between 0 and 1."""
        return self.seconds["train"] / self.whole if self.whole else 0.0

    @property
    def losses(self) -> list[Loss]:
        """What the rest of the time went to, the biggest first."""
        found = [(kind, spent) for kind, spent in self.seconds.items() if kind != "train" and spent]
        found.sort(key=lambda one: -one[1])
        return [Loss(kind, spent, spent / self.whole) for kind, spent in found]


def goodput_of(attempts: Sequence[Attempt]) -> Goodput:
    """Add up what attempts spent.

    What an attempt did beyond the step that a later one went on from was lost with it: all time
    of it from there on is work done again, whatever it went to.
    """
    seconds = dict.fromkeys(KINDS, 0.0)
    steps_again, kept = 0, math.inf
    for attempt in reversed(attempts):
        steps_again += round(max(0, attempt.last_step - max(kept, attempt.first_step)))
        for kind, spent in _spent(attempt, kept):
            seconds[kind] += spent
        kept = min(kept, attempt.first_step)
    return Goodput(attempts, seconds, steps_again)


def _spent(attempt: Attempt, kept: float) -> Iterator[tuple[str, float]]:
    """What an attempt spent, in pieces; steps after ``kept`` were lost."""
    nothing = Entry(0.0, attempt.first_step, dict.fromkeys(_MEASURED, 0.0))
    for before, after in pairwise([nothing, *attempt.entries]):
        steps = after.step - before.step
        lost = min(1.0, max(0.0, (after.step - kept) / steps)) if steps > 0 else 0.0
        if steps <= 0 and after.step > kept:
            lost = 1.0
        for kind in _MEASURED:
            spent = max(0.0, after.spent[kind] - before.spent[kind])
            again = spent * lost if kind != "startup" else 0.0
            yield "again", again
            yield kind, spent - again


def read_ledger(path: Path) -> tuple[list[Attempt], int]:
    """The attempts that a ``ledger.jsonl`` tells of, and how many lines cannot be read."""
    attempts: dict[str, Attempt] = {}
    unreadable = 0
    with path.open("rb") as file:
        for line in file:
            try:
                _take(attempts, json.loads(line))
            except (ValueError, TypeError, KeyError, RecursionError):
                unreadable += bool(line.strip())
    return list(attempts.values()), unreadable


def _take(attempts: dict[str, Attempt], row: dict[str, Any]) -> None:
    name, step = row["attempt"], row["step"]
    if type(name) is not str or type(step) is not int or not 0 <= step < _LONGEST:
        raise ValueError
    spent = {kind: _seconds(row[kind]) for kind in _MEASURED}
    entry = Entry(_seconds(row["time"]), step, spent)
    attempt = attempts.setdefault(name, Attempt(name))
    attempt.entries.append(entry)
    if row.get("event") == "begin":
        attempt.pid, attempt.processes = (_whole(row.get(key)) for key in ("pid", "processes"))
    elif row.get("event") == "end":
        attempt.end, attempt.why = str(row.get("end")), str(row.get("why", ""))


def _seconds(value: Any) -> float:
    if type(value) not in (int, float) or not 0 <= value < _LONGEST:
        raise ValueError
    return float(value)


def _whole(value: Any) -> int | None:
    return value if type(value) is int and 0 <= value < _LONGEST else None
