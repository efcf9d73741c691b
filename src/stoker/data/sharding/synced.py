"""Processes that each read data of their own, and take their windows together."""

from dataclasses import dataclass

from stoker.core import dist
from stoker.core.tree import batch_size
from stoker.core.types import Batch
from stoker.data.sharding.shard import DataShard


@dataclass(frozen=True, slots=True)
class SyncedWindow:
    """A window of every process.

    Args:
        window: that of this process, as long as the longest; empty where no process has any.
        idle: the batches at its end that only keep the others company.
        samples: those of all processes, without the idle ones.
    """

    window: list[Batch]
    idle: int
    samples: int


def longest_of(length: int | None) -> int | None:
    """The most batches a process has; 0 if one has none, None if one does not know."""
    lengths = [int(row[0]) for row in dist.all_gather_floats(-1 if length is None else length)]
    if min(lengths) < 0:
        return None
    return max(lengths) if min(lengths) else 0


def together(window: list[Batch], handed_out: int, name: str, part: DataShard) -> SyncedWindow:
    """Bring the window of this process together with those of the others; every process calls it.

    Who has no window is lent a batch by the first that has one.

    Args:
        window: the batches at hand, none where the data has come to its end.
        handed_out: batches of this pass so far, these included.
        name: what messages call the loader.
        part: the part of the data that this process reads, maybe with others.
    """
    rows = dist.all_gather_floats(len(window), sum(map(batch_size, window)), handed_out)
    counts = [int(row[0]) for row in rows]
    without = [str(rank) for rank, row in enumerate(rows) if not row[2]]
    if without:
        raise ValueError(
            f"{name} gave not enough batches for a step on process {', '.join(without)}: expected "
            "at least one window on each, every pass (an iterator can be read only once)"
        )
    longest = max(counts)
    filling = window[-1:]
    if longest and not min(counts):
        lender = next(rank for rank, count in enumerate(counts) if count)
        lent = dist.broadcast_object(window[-1:], lender)
        filling = filling or lent
    idle = longest - len(window)
    copies = max(1, len(rows) // part.count)
    return SyncedWindow(window + filling * idle, idle, sum(int(row[1]) for row in rows) // copies)
