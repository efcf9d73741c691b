"""Which part of the data a process reads, and how a loader is divided between processes."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any, Literal, TypeAlias, TypeVar

from torch import Tensor
from torch.utils.data import BatchSampler, DataLoader, DistributedSampler, IterableDataset

from stoker.core.log import get_logger
from stoker.core.tree import concatenate, map_tensors, tensors
from stoker.core.types import Stateful
from stoker.data.dataloader import length_of, owners
from stoker.data.resume.skipping_sampler import is_plain

_log = get_logger()

_Loader = TypeVar("_Loader")
_NONE = object()

Way: TypeAlias = Literal["alone", "cut", "even", "own"]
"""How the data comes to this process: it is alone; the loader is cut into parts; its sampler
gives every process as much; or each process reads what its own loader gives."""


@dataclass(frozen=True, slots=True)
class DataShard:
    """The part of the data that this process reads: number ``index`` of ``count``."""

    index: int = 0
    count: int = 1

    def __post_init__(self) -> None:
        if not 0 <= self.index < self.count:
            raise ValueError(f"a part is numbered from 0 to {self.count - 1}, got {self.index}")


def unshared(loader: _Loader) -> _Loader:
    """The loader itself, marked: every process reads all of it, whatever their number."""
    if isinstance(loader, DataLoader):  # nothing else is ever divided
        loader.unshared = True
    return loader


def sampler_of(loader: Any) -> Any:
    """What decides the order of single samples, in a loader whose batches torch cuts."""
    return loader.sampler if loader.batch_sampler is None else loader.batch_sampler.sampler


def way_of(loader: Any, part: DataShard) -> Way:
    """How this loader's data comes to the processes."""
    if part.count == 1:
        return "alone"
    if not _is_indexed(loader) or getattr(loader, "unshared", False):
        return "own"
    sampler = sampler_of(loader)
    if is_plain(sampler, DistributedSampler):
        return "even" if sampler.num_replicas == part.count else "own"
    divides_itself = hasattr(sampler, "num_replicas")
    return "own" if divides_itself or length_of(sampler) is None else "cut"


def tell_undivided(loader: Any, name: str, part: DataShard) -> None:
    """Say that every process reads all, where nobody seems to have thought of it."""
    if not isinstance(loader, DataLoader) or getattr(loader, "unshared", False):
        return
    divided_by = ("set_part", "num_replicas")
    if not any(hasattr(one, sign) for one in owners(loader) for sign in divided_by):
        _log.warning(
            f"{name} is not divided between the {part.count} processes: each reads all of it, "
            "unless its dataset or sampler goes by the rank itself (one with set_part(index, "
            "count) is told its part; stoker.data.unshared(loader) says that all is meant)"
        )


def in_order(parts: Sequence[Sequence[Any]], *, rows: bool = True) -> list[Any]:
    """The outputs of every part, window by window, in the order of the data.

    Args:
        parts: by part, a tree of tensors for each window; one without the idle window at its end,
            if it has one.
        rows: whether the rows of a window take turns, or whole outputs (``batch_size=None``).
    """
    found = []
    for window in zip_longest(*parts, fillvalue=_NONE):
        pieces = [piece for piece in window if piece is not _NONE]
        if rows:
            pieces = [_in_turn(pieces)]
        found += pieces
    return found


def _in_turn(pieces: list[Any]) -> Any:
    """Row 0 of every piece, then row 1 of every piece, and so on."""
    sizes = [next((len(t) for t in tensors(piece) if t.ndim), 1) for piece in pieces]
    place = [(row, index) for index, size in enumerate(sizes) for row in range(size)]
    order = sorted(range(len(place)), key=place.__getitem__)

    def turned(tensor: Tensor) -> Tensor:
        return tensor[order] if len(tensor) == len(order) else tensor

    return map_tensors(turned, concatenate(pieces))


def _is_indexed(loader: Any) -> bool:
    """Whether torch itself cuts an order of samples into the batches of this loader."""
    return (
        isinstance(loader, DataLoader)
        and type(loader).__iter__ is DataLoader.__iter__
        and not isinstance(loader, Stateful)
        and not isinstance(loader.dataset, IterableDataset)
        and (loader.batch_sampler is None or is_plain(loader.batch_sampler, BatchSampler))
    )
