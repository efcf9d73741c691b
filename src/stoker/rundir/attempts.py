"""`Attempt`: one start of a run, as its ledger records it."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from stoker.rundir.safe_folder import parse_json

KINDS = {
    "train": "useful training",
    "again": "repeated work",
    "startup": "startup",
    "data": "waiting for data",
    "save": "waiting for checkpoints",
    "eval": "evaluation",
    "other": "other",
}
"""What time is spent on, with the label of each kind."""

MEASURED = tuple(kind for kind in KINDS if kind != "again")
"""The kinds that the ledger measures."""

_LARGEST = 1e12


class Entry(NamedTuple):
    """A line of the ledger: the step of an attempt, and the seconds spent so far, by kind."""

    time: float
    step: int
    spent: Mapping[str, float]


@dataclass
class Attempt:
    """One start of a run."""

    id: str
    entries: list[Entry] = field(default_factory=list)
    pid: int | None = None
    processes: int | None = None
    end: str | None = None
    why: str = ""

    @property
    def started(self) -> float:
        """When its process started, in seconds since 1970."""
        first = self.entries[0]
        return first.time - sum(first.spent.values())

    @property
    def seconds(self) -> float:
        """How long it ran, up to its last entry."""
        return sum(self.entries[-1].spent.values())

    @property
    def first_step(self) -> int:
        """The step it started or resumed at."""
        return self.entries[0].step

    @property
    def last_step(self) -> int:
        """The last recorded step."""
        return self.entries[-1].step


def parse_ledger(lines: Iterable[bytes]) -> tuple[list[Attempt], int]:
    """Return the attempts in the lines of a ledger, and the number of lines that are invalid."""
    attempts: dict[str, Attempt] = {}
    invalid = 0
    for line in lines:
        try:
            _add(attempts, parse_json(line))
        except (ValueError, TypeError, KeyError):
            invalid += bool(line.strip())
    return list(attempts.values()), invalid


def _add(attempts: dict[str, Attempt], row: dict[str, Any]) -> None:
    name, step = row["attempt"], row["step"]
    if type(name) is not str or _count(step) is None:
        raise ValueError
    spent = {kind: _seconds(row[kind]) for kind in MEASURED}
    entry = Entry(_seconds(row["time"]), step, spent)
    attempt = attempts.setdefault(name, Attempt(name))
    attempt.entries.append(entry)
    if row.get("event") == "begin":
        attempt.pid, attempt.processes = (_count(row.get(key)) for key in ("pid", "processes"))
    elif row.get("event") == "end":
        attempt.end, attempt.why = str(row.get("end")), str(row.get("why", ""))


def _seconds(value: Any) -> float:
    if type(value) not in (int, float) or not 0 <= value < _LARGEST:
        raise ValueError
    return float(value)


def _count(value: Any) -> int | None:
    return value if type(value) is int and 0 <= value < _LARGEST else None
