"""The time line of a run: when its attempts ran, what they spent, and what happened to them."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

from stoker.rundir.goodput import goodput_of, seconds_by_attempt
from stoker.rundir.reader import KINDS, Attempt, MemberChange
from stoker.rundir.states import State

_MOST_ATTEMPTS = 500
_MOST_SHOWN = 8  # processes


@dataclass(frozen=True)
class Event:
    """Something that happened to a run.

    Attributes:
        time: when, in seconds since 1970.
        step: at which step.
        kind: "start", "fit", "restart" or "rollback"; "left" or "joined" for a process of an
            elastic run; or how an attempt ended: "finished", "stopped", "preempted", "failed", or
            "killed" if it left no end.
        text: details for people.
    """

    time: float
    step: int
    kind: str
    text: str = ""


def events_of(attempts: Sequence[Attempt], state: State) -> list[Event]:
    """Return what happened to a run, oldest first.

    Args:
        attempts: the attempts of its ledger.
        state: what the run is doing; the last attempt of a dead run was killed.
    """
    events: list[Event] = []
    for number, attempt in enumerate(attempts):
        events.append(_begin(attempt, attempts[number - 1] if number else None))
        before = attempts[number - 1].last_step if number else 0
        events += sorted([*_rollbacks(attempt, before), *_changes(attempt)], key=lambda e: e.time)
        is_last = number == len(attempts) - 1
        last = attempt.entries[-1]
        if attempt.end is not None:
            events.append(Event(last.time, last.step, attempt.end, attempt.why))
        elif not is_last or state == "dead":
            events.append(Event(last.time, last.step, "killed", "it left no end in the ledger"))
    return events


def _begin(attempt: Attempt, before: Attempt | None) -> Event:
    if before is None:
        return Event(attempt.started, attempt.first_step, "start")
    if before.pid == attempt.pid and before.end is not None:
        return Event(attempt.started, attempt.first_step, "fit", "the next fit of the same process")
    text = f"restart {attempt.restarts} by the launcher" if attempt.restarts else ""
    return Event(attempt.started, attempt.first_step, "restart", text)


def _rollbacks(attempt: Attempt, before: int) -> Iterator[Event]:
    """Yield where the step went back, between two attempts or within one."""
    first = attempt.entries[0]
    steps = [(first.time, before), *((entry.time, entry.step) for entry in attempt.entries)]
    for (_, then), (when, now) in pairwise(steps):
        if now < then:
            yield Event(when, now, "rollback", f"from step {then} to {now}: {then - now} repeated")


def _changes(attempt: Attempt) -> Iterator[Event]:
    """Yield which processes of an elastic run have left and joined."""
    for change in attempt.changes:
        processes = f"{len(change.members)} process{'es' if len(change.members) > 1 else ''}"
        continued = f"{processes} finished the next step after {change.seconds:g} s"
        if change.ranks:
            continued += f"; logical ranks: {_shown(change)}"
        for kind, members in (("left", change.left), ("joined", change.joined)):
            for member in members:
                yield Event(change.time, change.step, kind, f"process {member}; {continued}")


def _shown(change: MemberChange) -> str:
    """Return which process executes which logical ranks: ``0-1 on 4, 2 on 6``."""
    ranks = [f"{first}-{last}" if last > first else f"{first}" for first, last in change.ranks]
    pairs = [f"{one} on {member}" for one, member in zip(ranks, change.members, strict=False)]
    return ", ".join(pairs[:_MOST_SHOWN]) + (", …" if len(pairs) > _MOST_SHOWN else "")


def timeline_of(attempts: Sequence[Attempt], state: State) -> dict[str, Any]:
    """Return goodput, attempts and events of a run, as JSON can hold them.

    Only the last attempts of a run with hundreds of them are listed; goodput counts all.
    """
    if not attempts:
        return {"goodput": None, "seconds": {}, "attempts": [], "events": []}
    goodput = goodput_of(attempts)
    rows = [
        {
            "began": attempt.started,
            "seconds": attempt.seconds,
            "first_step": attempt.first_step,
            "last_step": attempt.last_step,
            "end": attempt.end,
            "spent": {KINDS[kind]: one for kind, one in spent.items() if one},
        }
        for attempt, spent in zip(attempts, seconds_by_attempt(attempts), strict=True)
    ]
    return {
        "goodput": goodput.share,
        "seconds": {KINDS[kind]: spent for kind, spent in goodput.seconds.items()},
        "attempts": rows[-_MOST_ATTEMPTS:],
        "events": [asdict(event) for event in events_of(attempts, state)[-4 * _MOST_ATTEMPTS :]],
    }
