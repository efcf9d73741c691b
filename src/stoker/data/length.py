"""How many batches a loader has."""

from collections.abc import Sized
from math import ceil
from typing import Any


def length_of(loader: Any) -> int | None:
    """The number of batches, None where the loader does not know it."""
    if not isinstance(loader, Sized):
        return None
    try:
        return len(loader)
    except TypeError:  # a DataLoader over an iterable dataset has __len__ and no length
        return None


def limited(length: int | None, limit: int | float, name: str) -> int:
    """How many batches a limit leaves."""
    if isinstance(limit, bool) or limit <= 0 or (isinstance(limit, float) and limit > 1):
        raise ValueError(
            f"a limit on {name} is a number of batches from 1, or a share up to 1.0, got {limit}"
        )
    if isinstance(limit, float):
        if length is None:
            raise ValueError(
                f"a share of {name} was asked for ({limit}), but it has no length: give a number"
            )
        return max(1, ceil(length * limit)) if length else 0
    return limit if length is None else min(limit, length)


def why_empty(loader: Any, parts: int) -> str:
    """The reason why a loader has no batch, where it is known."""
    samples = length_of(getattr(loader, "dataset", None))
    if not samples or not getattr(loader, "drop_last", False):
        return ""
    each = f" on each of {parts} processes" if parts > 1 else ""
    return (
        f" (its {samples} samples do not fill one batch of {loader.batch_size}{each} "
        "and drop_last is on)"
    )
