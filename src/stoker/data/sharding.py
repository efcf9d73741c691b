"""Which samples each rank reads."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from itertools import zip_longest
from typing import Any, TypeVar

from torch import Tensor
from torch.utils.data import BatchSampler, DataLoader, DistributedSampler, IterableDataset

from stoker.core import dist
from stoker.core.log import get_logger
from stoker.core.tree import batch_size, concatenate, map_tensors, tensors
from stoker.core.types import Batch, Stateful
from stoker.data.dataloader import components, is_plain_loader, length_of
from stoker.data.samplers import is_plain

_log = get_logger()

_Loader = TypeVar("_Loader")
_MISSING = object()


@dataclass(frozen=True, slots=True)
class DataShard:
    """The shard of the data that this process reads: number ``rank`` of ``world_size``.

    Processes that hold parts of one model, as with tensor parallelism, read the same shard.

    Args:
        rank: the number of the shard.
        world_size: the number of shards.
        logical_ranks: the number of shards, from ``rank`` on, that this process reads as so many
            logical ranks; None if it is a rank itself.
    """

    rank: int = 0
    world_size: int = 1
    logical_ranks: int | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.world_size:
            raise ValueError(
                f"the rank of a shard must be from 0 to {self.world_size - 1}, got {self.rank}"
            )


class ShardingMode(Enum):
    """How the data of a loader reaches the ranks."""

    SINGLE = auto()
    """There is one shard."""

    SHARDED = auto()
    """Stoker divides the order of the loader's sampler, or of a stream."""

    EVEN = auto()
    """A `DistributedSampler` gives all ranks the same number of batches."""

    PER_RANK = auto()
    """Each rank reads what its own loader yields; the numbers of batches may differ."""


def sharding_mode(loader: Any, shard: DataShard) -> ShardingMode:
    """Return how the data of this loader reaches the ranks."""
    if shard.world_size == 1:
        return ShardingMode.SINGLE
    is_stream = getattr(loader, "shards_itself", False)
    if getattr(loader, "unsharded", False) or not (is_stream or _has_index_order(loader)):
        return ShardingMode.PER_RANK
    if is_stream:
        return ShardingMode.SHARDED
    sampler = sampler_of(loader)
    if is_plain(sampler, DistributedSampler) and sampler.num_replicas == shard.world_size:
        return ShardingMode.EVEN
    if hasattr(sampler, "num_replicas") or length_of(sampler) is None:
        return ShardingMode.PER_RANK
    return ShardingMode.SHARDED


def unsharded(loader: _Loader) -> _Loader:
    """Mark a loader so that every process reads all of its data, and return it."""
    if isinstance(loader, DataLoader) or hasattr(loader, "shards_itself"):  # nothing else is
        loader.unsharded = True  # type: ignore[attr-defined]
    return loader


def sampler_of(loader: Any) -> Any:
    """Return the sampler of single indices, for a loader whose batches torch forms."""
    batches = loader.batch_sampler
    return loader.sampler if batches is None else getattr(batches, "sampler", batches)


def warn_if_unsharded(loader: Any, name: str, shard: DataShard) -> None:
    """Warn that every process reads all data, unless the loader shows that this is intended."""
    if not isinstance(loader, DataLoader) or getattr(loader, "unsharded", False):
        return
    signs = ("set_shard", "num_replicas")
    if not any(hasattr(one, sign) for one in components(loader) for sign in signs):
        _log.warning(
            f"{name} is not sharded between the {shard.world_size} processes: each reads all of "
            "it, unless its dataset or sampler uses the rank itself (give it a method "
            "set_shard(rank, world_size), or mark the loader with stoker.data.unsharded(loader) "
            "if this is intended)"
        )


def interleave(outputs: Sequence[Sequence[Any]], *, by_row: bool = True) -> list[Any]:
    """Merge the outputs of all shards in the order of the data.

    Args:
        outputs: for each shard, a tree of tensors per window, without a padding window at the end.
        by_row: whether to interleave the rows of a window; otherwise entire outputs
            (``batch_size=None``).
    """
    merged = []
    for window in zip_longest(*outputs, fillvalue=_MISSING):
        pieces = [piece for piece in window if piece is not _MISSING]
        merged += [_interleave_rows(pieces)] if by_row else pieces
    return merged


def _interleave_rows(pieces: list[Any]) -> Any:
    """Merge row 0 of every piece, then row 1 of every piece, and so on."""
    sizes = [next((len(t) for t in tensors(piece) if t.ndim), 1) for piece in pieces]
    keys = [(row, piece) for piece, size in enumerate(sizes) for row in range(size)]
    order = sorted(range(len(keys)), key=keys.__getitem__)

    def reorder(tensor: Tensor) -> Tensor:
        return tensor[order] if len(tensor) == len(order) else tensor

    return map_tensors(reorder, concatenate(pieces))


def _has_index_order(loader: Any) -> bool:
    """Return whether torch itself splits an order of indices into the batches of this loader."""
    return (
        is_plain_loader(loader)
        and not isinstance(loader, Stateful)
        and not isinstance(loader.dataset, IterableDataset)
        and (loader.batch_sampler is None or is_plain(loader.batch_sampler, BatchSampler))
    )


@dataclass(frozen=True, slots=True)
class ShardPlan:
    """Assigns the samples of a pass to ranks round-robin, one batch per rank at a time.

        order     0 1 2 3 4 5 | 6 7 8 9 10 11 | 12
        rank 0    0   2   4   | 6   8   10    | 12
        rank 1      1   3   5 |   7   9    11 | (12)

    A rank for which nothing is left in the last batch gets its first sample as a padding batch, so
    that all ranks have the same number of batches.

    Args:
        shard: the shard of this rank.
        batch_size: the number of samples per batch and rank.
        drop_last: whether to drop a last batch that is not full on every rank.
        num_samples: the number of samples in the pass.
        consumed: the number of samples that were read before this plan,
        first_batch: in this number of batches.
    """

    shard: DataShard
    batch_size: int
    drop_last: bool
    num_samples: int
    consumed: int = 0
    first_batch: int = 0

    @property
    def num_batches(self) -> int:
        """The number of batches in the pass, including those before this plan."""
        size, rest = self.batch_size * self.shard.world_size, self.num_samples - self.consumed
        return self.first_batch + (rest // size if self.drop_last else -(-rest // size))

    def consumed_before(self, batch: int) -> int:
        """Return the number of samples that all ranks read before the batch with this index."""
        size = self.batch_size * self.shard.world_size
        return min(self.num_samples, self.consumed + (batch - self.first_batch) * size)

    def indices(self, batch: int) -> range:
        """Return the indices into the order that this rank reads in a batch."""
        return self.indices_of(0 if self.is_padding(batch) else self.shard.rank, batch)

    def indices_of(self, rank: int, batch: int) -> range:
        """Return the indices into the order that a rank reads in a batch; empty if none is left."""
        begin, end = self.consumed_before(batch), self.consumed_before(batch + 1)
        return range(begin + rank, end, self.shard.world_size)

    def logical_batches(self, batch: int) -> list[tuple[int, range]]:
        """Return the logical ranks of this process that have a part of a batch, with its indices.

        There is no padding: logical ranks need not run in lockstep.
        """
        first = self.shard.rank
        ranks = range(first, first + (self.shard.logical_ranks or 0))
        found = [(rank, self.indices_of(rank, batch)) for rank in ranks]
        return [(rank, indices) for rank, indices in found if indices]

    def is_padding(self, batch: int) -> bool:
        """Return whether nothing is left for this rank in a batch."""
        return self.consumed_before(batch) + self.shard.rank >= self.consumed_before(batch + 1)


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
