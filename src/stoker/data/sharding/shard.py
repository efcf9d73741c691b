"""`DataShard` and `ShardingMode`: how the data of a loader is divided between ranks."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto
from itertools import zip_longest
from typing import Any, TypeVar

from torch import Tensor
from torch.utils.data import BatchSampler, DataLoader, DistributedSampler, IterableDataset

from stoker.core.log import get_logger
from stoker.core.tree import concatenate, map_tensors, tensors
from stoker.core.types import Stateful
from stoker.data.dataloader import components, is_plain_loader, length_of
from stoker.data.samplers import is_plain

_log = get_logger()

_Loader = TypeVar("_Loader")
_MISSING = object()


@dataclass(frozen=True, slots=True)
class DataShard:
    """The shard of the data that this process reads: number ``rank`` of ``world_size``.

    Processes that hold parts of one model, as with tensor parallelism, read the same shard.
    """

    rank: int = 0
    world_size: int = 1

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
    """Stoker divides the order of the loader's sampler."""

    EVEN = auto()
    """A `DistributedSampler` gives all ranks the same number of batches."""

    PER_RANK = auto()
    """Each rank reads what its own loader yields; the numbers of batches may differ."""


def sharding_mode(loader: Any, shard: DataShard) -> ShardingMode:
    """Return how the data of this loader reaches the ranks."""
    if shard.world_size == 1:
        return ShardingMode.SINGLE
    if not _has_index_order(loader) or getattr(loader, "unsharded", False):
        return ShardingMode.PER_RANK
    sampler = sampler_of(loader)
    if is_plain(sampler, DistributedSampler) and sampler.num_replicas == shard.world_size:
        return ShardingMode.EVEN
    if hasattr(sampler, "num_replicas") or length_of(sampler) is None:
        return ShardingMode.PER_RANK
    return ShardingMode.SHARDED


def unsharded(loader: _Loader) -> _Loader:
    """Mark a loader so that every process reads all of its data, and return it."""
    if isinstance(loader, DataLoader):  # nothing else is ever sharded
        loader.unsharded = True
    return loader


def sampler_of(loader: Any) -> Any:
    """Return the sampler of single indices, for a loader whose batches torch forms."""
    return loader.sampler if loader.batch_sampler is None else loader.batch_sampler.sampler


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
