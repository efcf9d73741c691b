"""Find the first difference between two trainings, causes before effects."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from stoker.events.writers.jsonl import read_json_lines
from stoker.rundir import files
from stoker.testing.record import (
    HOOK_TENSORS,
    Position,
    Record,
    Records,
    is_machine_dependent,
)


@dataclass(frozen=True)
class Difference:
    """The first difference between a killed training and its reference.

    Attributes:
        what: What differs, such as "loss at step 8".
        expected: The value in the reference.
        actual: The value in the killed training.
        attempt: The attempt that produced it, 0 for the first, or None if it is unknown.
        suspects: Values that are not saved and differ too; one of them may be the cause.
    """

    what: str
    expected: str = ""
    actual: str = ""
    attempt: int | None = None
    suspects: tuple[str, ...] = ()

    def __str__(self) -> str:
        """Return a description; digests are left out."""
        if self.expected == self.actual or "#" in (self.expected[:1], self.actual[:1]):
            return self.what
        return f"{self.what}: {self.actual} instead of {self.expected}"


class _Order(NamedTuple):
    """The order of differences: earlier steps first, then causes before effects."""

    position: Position
    part: int
    unexplained: bool = True
    rank: int = 0


def first_difference(references: Sequence[Records], others: Sequence[Records]) -> Difference | None:
    """Return the first difference, or None if all records are the same, bit for bit.

    Args:
        references: The records of the reference, one for each process.
        others: The records of the killed training.
    """
    pairs = list(zip(references, others, strict=True))
    found = [
        (order._replace(rank=rank), difference)
        for rank, pair in enumerate(pairs)
        if (in_steps := _in_steps(*pair)) is not None
        for order, difference in [in_steps]
    ]
    if found:
        order, difference = min(found, key=lambda pair: pair[0])
        if order.unexplained:
            difference = replace(difference, suspects=_suspects_of_all(pairs, order.position))
        return _name_rank(order.rank, difference, len(pairs))
    if (in_files := _in_files(references[0], others[0])) is not None:
        return in_files
    for rank, pair in enumerate(pairs):
        if (at_end := _at_end(*pair)) is not None:
            return _name_rank(rank, at_end, len(pairs))
    return None


def _name_rank(rank: int, difference: Difference, processes: int) -> Difference:
    prefix = f"rank {rank}: " if processes > 1 else ""
    return replace(difference, what=prefix + difference.what)


def _in_steps(reference: Records, other: Records) -> tuple[_Order, Difference] | None:
    for position in sorted(reference.steps.keys() | other.steps.keys()):
        one, two = reference.steps.get(position), other.steps.get(position)
        if one is None or two is None:
            what = f"step {position.step}, after {position.samples} samples"
            which = "killed training" if one is None else "reference"
            return _Order(position, -1), Difference(f"{what}: only the {which} has this step")
        if (found := _in_parts(reference, one, two, f"step {position.step}")) is not None:
            number, what, expected, actual = found
            suspects = _suspects(reference, other, two)
            order = _Order(position, number, not suspects)
            return order, Difference(what, expected, actual, two.attempt, suspects)
    return None


def _in_parts(
    reference: Records, one: Record, two: Record, when: str
) -> tuple[int, str, str, str] | None:
    """Return the index of the first part that differs, a description, and both values."""
    for number, part in enumerate(dict.fromkeys((*one.parts, *two.parts))):
        expected, actual = one.parts.get(part, {}), two.parts.get(part, {})
        keys = [k for k in dict.fromkeys((*expected, *actual)) if expected.get(k) != actual.get(k)]
        if keys:
            key = keys[0]
            is_batch = part == "batch"
            what = _describe_batch(reference, one, two) if is_batch else _describe(part, key, when)
            return number, what, expected.get(key, "nothing"), actual.get(key, "nothing")
    return None


def _describe(part: str, key: str, when: str) -> str:
    part = part.replace(HOOK_TENSORS, "hook ")
    if part == "loss":
        return f"loss at {when}"
    if part in ("RNG", "RNG before"):
        return f"RNG of {key} {'before' if part == 'RNG before' else 'after'} {when}"
    if part.startswith("hook "):
        return f"{part}: key {key} after {when}"
    return f"{part}: {key} after {when}"


def _describe_batch(reference: Records, one: Record, two: Record) -> str:
    """Describe whether another batch was seen, or the same batch with other contents."""
    expected, actual = one.parts["batch"], two.parts["batch"]
    where = f"in epoch {one.epoch} at step {one.position.step}"
    for position, record in reference.steps.items():
        if record.parts["batch"] == actual:
            return f"batch order {where} (it used the batches of step {position.step})"
    same = [key for key in expected if expected[key] == actual.get(key)]
    return f"batch contents {where}" if same else f"batch order or contents {where}"


def _suspects(reference: Records, other: Records, until: Record) -> tuple[str, ...]:
    """Return the unsaved values that differ at the first step of the attempt where any does."""
    for position, record in sorted(other.steps.items(), key=lambda item: item[0]):
        if record.attempt != until.attempt or position > until.position:
            continue
        if position not in reference.steps:
            continue
        expected, actual = reference.steps[position].unsaved, record.unsaved
        names = dict.fromkeys((*expected, *actual))
        if differing := [name for name in names if expected.get(name) != actual.get(name)]:
            return tuple(differing)
    return ()


def _suspects_of_all(
    pairs: Sequence[tuple[Records, Records]], position: Position
) -> tuple[str, ...]:
    """Return the suspects of all ranks, for a rank that differs first and has none itself."""
    found: list[str] = []
    for rank, (reference, other) in enumerate(pairs):
        until = [record for one, record in other.steps.items() if one.step == position.step]
        for record in until[-1:]:
            found += [f"rank {rank}: {name}" for name in _suspects(reference, other, record)]
    return tuple(found)


def _in_files(reference: Records, other: Records) -> Difference | None:
    for fit, folder in reference.folders.items():
        if fit not in other.folders:
            continue
        paths = [one / files.METRICS for one in (folder, other.folders[fit])]
        rows = [_lines(path) if path.exists() else [] for path in paths]
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
        {
            name: value
            for name, value in row.items()
            if name != "time" and not is_machine_dependent(name)
        }
        for row in read_json_lines(path)
    ]


def _at_end(reference: Records, other: Records) -> Difference | None:
    for fit, one in reference.ends.items():
        two = other.ends.get(fit)
        if two is None:
            return Difference("the end of the training: only the reference reached it")
        if (found := _in_parts(reference, one, two, "the end")) is not None:
            return Difference(*found[1:], attempt=two.attempt)
    return None


def compared(references: Sequence[Records]) -> dict[str, int]:
    """Return how many values of each part were compared, over all processes."""
    records = [record for one in references for record in (*one.steps.values(), *one.ends.values())]
    counts: dict[str, int] = {}
    for record in records:
        for part, values in record.parts.items():
            name = "hook states" if part.startswith(("hook ", HOOK_TENSORS)) else part
            counts[name] = counts.get(name, 0) + len(values)
    lines = [
        _lines(f / files.METRICS)
        for f in references[0].folders.values()
        if (f / files.METRICS).exists()
    ]
    return {name: count for name, count in counts.items() if count} | {
        "lines of metrics.jsonl": sum(map(len, lines))
    }
