"""Goodput: the share of a run's time that went into useful training, and what the rest went to."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import NamedTuple

from stoker.rundir.reader import KINDS, MEASURED, Attempt, Entry


class Loss(NamedTuple):
    """Time that was not useful training."""

    kind: str
    seconds: float
    share: float

    @property
    def name(self) -> str:
        """The label of its kind."""
        return KINDS[self.kind]


@dataclass
class Goodput:
    """The time of a run over all its attempts.

    Args:
        attempts: oldest first.
        seconds: by kind, as in `KINDS`.
        repeated_steps: steps that were lost with an attempt and done again by a later one.
    """

    attempts: Sequence[Attempt]
    seconds: Mapping[str, float]
    repeated_steps: int

    @property
    def total(self) -> float:
        """Seconds of all attempts, without the time between them."""
        return sum(self.seconds.values())

    @property
    def share(self) -> float:
        """The share of useful training, between 0 and 1."""
        return self.seconds["train"] / self.total if self.total else 0.0

    @property
    def losses(self) -> list[Loss]:
        """What the rest of the time went to, the largest first."""
        found = [(kind, spent) for kind, spent in self.seconds.items() if kind != "train" and spent]
        found.sort(key=lambda one: -one[1])
        return [Loss(kind, spent, spent / self.total) for kind, spent in found]


def goodput_of(attempts: Sequence[Attempt]) -> Goodput:
    """Add up the time of the attempts at a run.

    What an attempt did after the step that a later one resumed from was lost: all of its time from
    there on is repeated work.
    """
    by_attempt = seconds_by_attempt(attempts)
    seconds = {kind: sum(one[kind] for one in by_attempt) for kind in KINDS}
    repeated_steps = sum(
        round(max(0, attempt.last_step - max(kept, attempt.first_step)))
        for attempt, kept in zip(attempts, _kept(attempts), strict=True)
    )
    return Goodput(attempts, seconds, repeated_steps)


def seconds_by_attempt(attempts: Sequence[Attempt]) -> list[dict[str, float]]:
    """Return what each attempt spent, by kind."""
    found = []
    for attempt, kept in zip(attempts, _kept(attempts), strict=True):
        seconds = dict.fromkeys(KINDS, 0.0)
        for kind, spent in _spent(attempt, kept):
            seconds[kind] += spent
        found.append(seconds)
    return found


def _kept(attempts: Sequence[Attempt]) -> list[float]:
    """Return up to which step later attempts have kept the work of each."""
    later = [float(attempt.first_step) for attempt in attempts[1:]]
    return [*accumulate(reversed([*later, math.inf]), min)][::-1]


def _spent(attempt: Attempt, kept: float) -> Iterator[tuple[str, float]]:
    """Yield what an attempt spent, by kind; steps after ``kept`` were lost."""
    start = Entry(0.0, attempt.first_step, dict.fromkeys(MEASURED, 0.0))
    for before, after in pairwise([start, *attempt.entries]):
        steps = after.step - before.step
        lost = min(1.0, max(0.0, (after.step - kept) / steps)) if steps > 0 else 0.0
        if steps <= 0 and after.step > kept:
            lost = 1.0
        for kind in MEASURED:
            spent = max(0.0, after.spent[kind] - before.spent[kind])
            again = spent * lost if kind != "startup" else 0.0
            yield "again", again
            yield kind, spent - again


def format_share(share: float) -> str:
    """Return a share as text: ``71.3 %``."""
    return f"{100 * share:.1f} %"
