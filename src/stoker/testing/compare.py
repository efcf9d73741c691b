"""Where two trainings part: the first difference, in the order of cause."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from stoker.events.writers.jsonl import read_json_lines
from stoker.testing.record import OF_HOOK, Position, Records, Row, is_measured


@dataclass(frozen=True)
class Difference:
    """The first thing that is not the same.

    Args:
        what: in words, such as "loss at step 8".
        wanted: how the reference has it.
        found: how the killed training has it.
        attempt: the attempt that made it, 0 for the first; None where that is not known.
        suspects: values that are not saved and differ, too; one of them may be the cause.
    """

    what: str
    wanted: str = ""
    found: str = ""
    attempt: int | None = None
    suspects: tuple[str, ...] = ()

    def __str__(self) -> str:
        """In words."""
        if self.wanted == self.found or "#" in (self.wanted[:1], self.found[:1]):
            return self.what  # a digest tells nobody anything
        return f"{self.what}: {self.found} instead of {self.wanted}"


class _When(NamedTuple):
    """How early a difference is: causes come before what follows from them."""

    place: Position
    part: int
    unexplained: bool = True
    rank: int = 0


def first_difference(references: Sequence[Records], others: Sequence[Records]) -> Difference | None:
    """None if both are the same, bit for bit.

    Args:
        references: what the reference did in each process.
        others: what the killed training did.
    """
    pairs = list(zip(references, others, strict=True))
    found = [
        (when._replace(rank=rank), difference)
        for rank, pair in enumerate(pairs)
        if (one := _in_steps(*pair)) is not None
        for when, difference in [one]
    ]
    if found:
        when, difference = min(found, key=lambda one: one[0])
        if when.unexplained:
            difference = replace(difference, suspects=_suspects_of_all(pairs, when.place))
        return _said_of(when.rank, difference, len(pairs))
    if (in_files := _in_files(references[0], others[0])) is not None:
        return in_files
    for rank, pair in enumerate(pairs):
        if (at_end := _in_the_end(*pair)) is not None:
            return _said_of(rank, at_end, len(pairs))
    return None


def _said_of(rank: int, difference: Difference, processes: int) -> Difference:
    whose = f"rank {rank}: " if processes > 1 else ""
    return replace(difference, what=whose + difference.what)


def _in_steps(reference: Records, other: Records) -> tuple[_When, Difference] | None:
    for place in sorted(reference.steps.keys() | other.steps.keys()):
        one, two = reference.steps.get(place), other.steps.get(place)
        if one is None or two is None:
            what = f"step {place.step}, after {place.samples} samples"
            which = "killed training" if one is None else "reference"
            return _When(place, -1), Difference(f"{what}: only the {which} has made it")
        if (found := _in_parts(reference, one, two, f"step {place.step}")) is not None:
            number, what, wanted, had = found
            suspects = _suspects(reference, other, two)
            when = _When(place, number, not suspects)
            return when, Difference(what, wanted, had, two.attempt, suspects)
    return None


def _in_parts(
    reference: Records, one: Row, two: Row, when: str
) -> tuple[int, str, str, str] | None:
    """The number of the first part that differs, what it is, and how both have it."""
    for number, part in enumerate(dict.fromkeys((*one.parts, *two.parts))):
        wanted, found = one.parts.get(part, {}), two.parts.get(part, {})
        keys = [k for k in dict.fromkeys((*wanted, *found)) if wanted.get(k) != found.get(k)]
        if keys:
            key = keys[0]
            named = _batch(reference, one, two) if part == "batch" else _words(part, key, when)
            values = wanted.get(key, "nothing"), found.get(key, "nothing")
            return (number, named, *values)
    return None


def _words(part: str, key: str, when: str) -> str:
    part = part.replace(OF_HOOK, "hook ")
    if part == "loss":
        return f"loss at {when}"
    if part in ("RNG", "RNG before"):
        return f"RNG of {key} {'before' if part == 'RNG before' else 'after'} {when}"
    if part.startswith("hook "):
        return f"{part}: key {key} after {when}"
    return f"{part}: {key} after {when}"


def _batch(reference: Records, one: Row, two: Row) -> str:
    """Another batch, or the same one with other contents, as far as can be told."""
    wanted, found = one.parts["batch"], two.parts["batch"]
    where = f"in epoch {one.epoch} at step {one.place.step}"
    for place, row in reference.steps.items():
        if row.parts["batch"] == found:
            return f"batch order {where} (it saw the batches of step {place.step})"
    same = [key for key in wanted if wanted[key] == found.get(key)]
    return f"batch contents {where}" if same else f"batch order or contents {where}"


def _suspects(reference: Records, other: Records, until: Row) -> tuple[str, ...]:
    """Plain attributes that differ at the earliest step of the attempt at which any does."""
    for place in sorted(other.steps):
        row = other.steps[place]
        if row.attempt != until.attempt or place > until.place or place not in reference.steps:
            continue
        wanted = reference.steps[place].plain
        names = [
            n for n in dict.fromkeys((*wanted, *row.plain)) if wanted.get(n) != row.plain.get(n)
        ]
        if names:
            return tuple(names)
    return ()


def _suspects_of_all(pairs: Sequence[tuple[Records, Records]], place: Position) -> tuple[str, ...]:
    """Those of each process, where the one that differs first has none."""
    found: list[str] = []
    for rank, (reference, other) in enumerate(pairs):
        until = [row for one, row in other.steps.items() if one.step == place.step]
        for row in until[-1:]:
            found += [f"rank {rank}: {name}" for name in _suspects(reference, other, row)]
    return tuple(found)


def _in_files(reference: Records, other: Records) -> Difference | None:
    for fit, folder in reference.folders.items():
        if fit not in other.folders:
            continue
        files = [one / "metrics.jsonl" for one in (folder, other.folders[fit])]
        rows = [_lines(path) if path.exists() else [] for path in files]
        for number in range(max(map(len, rows))):
            one, two = (r[number] if number < len(r) else {} for r in rows)
            for name in dict.fromkeys((*one, *two)):
                if repr(one.get(name)) != repr(two.get(name)):
                    step = one.get("step", two.get("step"))
                    what = f"line {number + 1} of metrics.jsonl (step {step}): {name}"
                    return Difference(what, repr(one.get(name)), repr(two.get(name)))
    return None


def _lines(path: Path) -> list[dict[str, float]]:
    return [
        {name: value for name, value in row.items() if name != "time" and not is_measured(name)}
        for row in read_json_lines(path)
    ]


def _in_the_end(reference: Records, other: Records) -> Difference | None:
    for fit, one in reference.ends.items():
        two = other.ends.get(fit)
        if two is None:
            return Difference("the end of the training: only the reference came to it")
        if (found := _in_parts(reference, one, two, "the end")) is not None:
            return Difference(*found[1:], attempt=two.attempt)
    return None


def compared(references: Sequence[Records]) -> dict[str, int]:
    """How much of each part there was to compare, in all processes."""
    rows = [row for one in references for row in (*one.steps.values(), *one.ends.values())]
    counts: dict[str, int] = {}
    for row in rows:
        for part, values in row.parts.items():
            name = "hook states" if part.startswith(("hook ", OF_HOOK)) else part
            counts[name] = counts.get(name, 0) + len(values)
    lines = [
        _lines(f / "metrics.jsonl")
        for f in references[0].folders.values()
        if (f / "metrics.jsonl").exists()
    ]
    return {name: count for name, count in counts.items() if count} | {
        "lines of metrics.jsonl": sum(map(len, lines))
    }
