"""This process among its peers. Every function also works where there is only one."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.distributed as c10d

_alone = False


def rank() -> int:
    """The number of this process, 0 where it is alone."""
    return c10d.get_rank() if _connected() else 0


def world_size() -> int:
    """How many processes train together."""
    return c10d.get_world_size() if _connected() else 1


def is_main() -> bool:
    """Whether this process is the one that speaks: rank 0."""
    return rank() == 0


def all_sum(*numbers: float) -> list[float]:
    """Each number summed over all processes, in double precision. Every process must call it."""
    if _alone or world_size() == 1:
        return list(numbers)
    sums = torch.tensor(numbers, dtype=torch.float64)
    c10d.all_reduce(sums)
    total: list[float] = sums.tolist()
    return total


def any_true(flag: bool) -> bool:
    """Whether ``flag`` is true on any process. Every process must call it."""
    return all_sum(float(flag)) != [0.0]


def from_main(value: str) -> str:
    """What rank 0 has for ``value``. Every process must call it."""
    if world_size() == 1:
        return value
    held = [value]
    c10d.broadcast_object_list(held, src=0)
    return held[0]


@contextmanager
def alone() -> Iterator[None]:
    """Within it, sums stay local: for one process that looks while the others do not."""
    global _alone  # noqa: PLW0603
    before, _alone = _alone, True
    try:
        yield
    finally:
        _alone = before


def _connected() -> bool:
    return c10d.is_available() and c10d.is_initialized()
