"""Checks of files that nobody vouches for: what is wrong with them is reported in one sentence."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise, product
from math import prod
from typing import Any

from stoker.core.errors import CheckpointError

LARGEST = 2**63
"""No size, offset or dimension reaches this."""

_MOST_DIMENSIONS = 64
_MOST_SPLIT_DIMENSIONS = 8


@contextmanager
def reading(what: str) -> Iterator[None]:
    """Turn every error of the block into a `CheckpointError` that names ``what`` and the cause."""
    try:
        yield
    except CheckpointError:
        raise
    except Exception as error:  # parsers raise many kinds of errors for garbage
        raise CheckpointError(f"{what} cannot be read: {cause(error)}") from error


def cause(error: BaseException) -> str:
    """Return an error as part of a sentence: its kind unless it speaks for itself, and its text."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    text = (str(error).splitlines() or [""])[0][:300]
    if text and type(error).__name__ in ("ValueError", "CheckpointError", "SafetensorError"):
        return text
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def parse_object(text: bytes) -> dict[str, Any]:
    """Return the JSON object in a text; one that has a key twice is rejected."""
    found = json.loads(text.decode(), object_pairs_hook=_without_duplicates)
    if not isinstance(found, dict):
        raise ValueError(f"it holds a {type(found).__name__}, expected an object")
    return found


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"'{twice[:200]}' occurs twice")
    return found


def check_keys(value: Any, keys: tuple[str, ...], what: str) -> dict[str, Any]:
    """Return an object that has exactly these keys."""
    if not isinstance(value, dict) or value.keys() != set(keys):
        raise ValueError(f"{what} must have {', '.join(keys)}")
    return value


def check_count(value: Any, what: str, below: int = LARGEST) -> int:
    """Return a number that can be a size, an offset or a counter."""
    if type(value) is not int or not 0 <= value < below:
        raise ValueError(f"{what} is {_short(value)}, expected an integer from 0 below {below}")
    return value


def check_dimensions(value: Any, what: str) -> tuple[int, ...]:
    """Return a shape or an offset."""
    if type(value) is not list or len(value) > _MOST_DIMENSIONS:
        raise ValueError(f"{what} is {_short(value)}, expected a list of integers")
    for side in value:
        if type(side) is not int or not 0 <= side < LARGEST:
            raise ValueError(f"{what} is {_short(value)}, expected integers from 0")
    return tuple(value)


def check_contiguous(ranges: list[tuple[int, int]], size: int) -> None:
    """Check that ranges of bytes neither overlap nor leave a gap, and end where the file ends."""
    ranges = sorted(ranges)
    ends = [(0, 0), *ranges, (size, size)]
    for (_, end), (begin, _) in pairwise(ends):
        if begin != end:
            kind = "overlap" if begin < end else "leave a gap"
            raise ValueError(f"its tensors {kind} at byte {min(begin, end)} of {size}")


def check_tiling(
    pieces: dict[tuple[int, ...], tuple[int, ...]], shape: tuple[int, ...], what: str
) -> None:
    """Check that pieces, given as offset → shape, cover a tensor exactly once.

    Every corner of a piece that is not one of the tensor is shared by an even number of pieces, and
    the sizes add up: only exact coverings have both properties.
    """
    split = [
        dim
        for dim in range(len(shape))
        if any(o[dim] or s[dim] != shape[dim] for o, s in pieces.items())
    ]
    if len(split) > _MOST_SPLIT_DIMENSIONS:
        raise ValueError(f"{what} is split along {len(split)} dimensions")
    odd: set[tuple[int, ...]] = set()
    for offset, sizes in [*pieces.items(), ((0,) * len(shape), shape)]:
        odd ^= set(product(*((offset[dim], offset[dim] + sizes[dim]) for dim in split)))
    if odd or sum(map(prod, pieces.values())) != prod(shape):
        raise ValueError(f"the pieces of {what} do not cover it exactly once")


def _short(value: Any) -> str:
    text = repr(value) if isinstance(value, int | float | str | None) else type(value).__name__
    return text if len(text) <= 60 else f"{text[:57]}…"
