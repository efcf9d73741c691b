"""Iterators of a `DataLoader` over other indices than its own, and workers that outlive a pass."""

from collections.abc import Iterable, Iterator, Sequence
from copy import copy
from typing import Any

import torch
from torch.utils.data import DataLoader

from stoker.data.gather import batches_of
from stoker.seed import undisturbed
from stoker.types import Batch


def workers_run(loader: Any) -> bool:
    """Whether the loader has workers from an earlier pass, which it will use again."""
    return _persists(loader) and loader._iterator is not None


def wake(loader: Any, generators: Sequence[torch.Generator]) -> None:
    """Start the workers that outlive a pass, if they do not run: no draw is made, nothing read."""
    if _persists(loader) and loader._iterator is None:
        with undisturbed(*generators):
            batches_at(loader, [])


def batches_at(loader: Any, indices: Iterable[Any]) -> Iterator[Batch]:
    """What the loader makes of these indices, begun as it begins a pass; its workers are kept."""
    batches: Any = batches_of(over(loader, indices))
    if _persists(loader):
        batches._index_sampler = loader._index_sampler  # for the passes that follow
        loader._iterator = batches
    return batches  # type: ignore[no-any-return]


def over(loader: Any, indices: Iterable[Any]) -> Any:
    """The same loader over these indices, with no workers yet."""
    twin = copy(loader)
    sampler = "sampler" if loader.batch_sampler is None else "batch_sampler"
    twin.__dict__.update({sampler: indices, "_iterator": None})  # a loader guards its attributes
    return twin


def _persists(loader: Any) -> bool:
    return (
        isinstance(loader, DataLoader)
        and type(loader).__iter__ is DataLoader.__iter__
        and loader.persistent_workers
        and loader.num_workers > 0
    )
