"""Matrices of near-equal cases: complete by a target of make, otherwise a seeded sample."""

import os
import random
from collections.abc import Callable, Sequence
from typing import TypeVar

Case = TypeVar("Case")
SEED = 21
TARGETS = {"STOKER_LAYOUTS": "make layouts", "STOKER_KILLS": "make kills"}
"""The variables that make a matrix complete, and the target of make that sets each to "all"."""


def sample(
    variable: str, cases: Sequence[Case], count: int, always: Sequence[Case] = ()
) -> list[Case]:
    """Return all cases if the variable is "all", otherwise those named and ``count`` others."""
    assert all(case in cases for case in always)
    if _is_complete(variable):
        return list(cases)
    others = [number for number, case in enumerate(cases) if case not in always]
    drawn = {*random.Random(SEED).sample(others, count)}
    return [case for number, case in enumerate(cases) if number in drawn or case in always]


def one_of_each(variable: str, cases: Sequence[Case], kind: Callable[[Case], object]) -> list[Case]:
    """Return all cases if the variable is "all", otherwise one of each kind."""
    if _is_complete(variable):
        return list(cases)
    kinds: dict[object, list[Case]] = {}
    for case in cases:
        kinds.setdefault(kind(case), []).append(case)
    draw = random.Random(SEED)
    return [draw.choice(alike) for alike in kinds.values()]


def _is_complete(variable: str) -> bool:
    assert variable in TARGETS
    return os.environ.get(variable) == "all"


def describe() -> str:
    """Return one line for the head of a test run."""
    missing = [target for name, target in TARGETS.items() if not _is_complete(name)]
    targets = f"; {', '.join(missing)} run them completely" if missing else ""
    return f"matrices: sampled by seed {SEED}{targets}"
