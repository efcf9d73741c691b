"""Lockstep for ranks that each read their own data: equal numbers of batches in every window."""

from dataclasses import dataclass, field

from stoker.core import dist
from stoker.core.tree import batch_size
from stoker.core.types import Batch
from stoker.data.sharding.shard import DataShard


@dataclass(frozen=True, slots=True)
class SyncedWindow:
    """An accumulation window that has the same number of batches on all ranks.

    Args:
        batches: the batches of this rank; empty if no rank has any left.
        padding: the number of padding batches at the end.
        samples: the number of samples on all ranks, without padding.
    """

    batches: list[Batch] = field(default_factory=list)
    padding: int = 0
    samples: int = 0


def longest_of(length: int | None) -> int | None:
    """Return the largest length of all ranks; 0 if one is empty, None if one is unknown.

    All ranks must call it.
    """
    lengths = [int(row[0]) for row in dist.all_gather_floats(-1 if length is None else length)]
    if min(lengths) < 0:
        return None
    return max(lengths) if min(lengths) else 0


def sync_window(window: list[Batch], handed_out: int, name: str, shard: DataShard) -> SyncedWindow:
    """Pad the window of this rank to the longest one; all ranks must call it.

    A rank repeats its last batch as padding. One that has no batch in this window gets a batch of
    the first rank that has one.

    Args:
        window: the batches of this rank; empty if its data has ended.
        handed_out: the number of batches in this pass so far, these included.
        name: the name of the loader in messages.
        shard: the shard of this rank; several ranks may read the same one.
    """
    rows = dist.all_gather_floats(len(window), sum(map(batch_size, window)), handed_out)
    counts = [int(row[0]) for row in rows]
    empty = [str(rank) for rank, row in enumerate(rows) if not row[2]]
    if empty:
        raise ValueError(
            f"{name} has too few batches for a step on rank {', '.join(empty)}: expected at least "
            "one window per pass on every rank (an iterator can be read only once)"
        )
    longest = max(counts)
    filler = window[-1:]
    if longest and not min(counts):
        source = next(rank for rank, count in enumerate(counts) if count)
        received = dist.broadcast_object(window[-1:], source)
        filler = filler or received
    padding = longest - len(window)
    readers_per_shard = max(1, len(rows) // shard.world_size)
    samples = sum(int(row[1]) for row in rows) // readers_per_shard
    return SyncedWindow(window + filler * padding, padding, samples)
