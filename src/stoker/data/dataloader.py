"""What Stoker needs to know about a `DataLoader`: its length, its generators, its workers."""

from collections.abc import Iterable, Iterator, Sequence, Sized
from copy import copy
from math import ceil
from typing import Any

import torch
from torch.utils.data import DataLoader

from stoker.core.attributes import attributes
from stoker.core.seed import preserve_rng
from stoker.core.types import Batch
from stoker.data.in_memory import batches_of


def is_plain_loader(loader: Any) -> bool:
    """Return whether this is a `DataLoader` that iterates as torch implements it."""
    return isinstance(loader, DataLoader) and type(loader).__iter__ is DataLoader.__iter__


# Length


def length_of(loader: Any) -> int | None:
    """Return the number of batches, or None if the loader does not know it."""
    if not isinstance(loader, Sized):
        return None
    try:
        return len(loader)
    except TypeError:  # a DataLoader over an iterable dataset has __len__ but no length
        return None


def limited(length: int | None, limit: int | float, name: str) -> int:
    """Return the number of batches that ``limit``, an int or a fraction, leaves of ``length``."""
    is_number = hasattr(limit, "__float__") and not isinstance(limit, bool)
    if not is_number or not limit > 0 or (isinstance(limit, float) and limit > 1):
        raise ValueError(
            f"the limit on {name} must be an integer number of batches from 1, or a fraction up to "
            f"1.0, got {limit}"
        )
    if isinstance(limit, float):
        if length is None:
            raise ValueError(
                f"the limit on {name} is a fraction ({limit}), but {name} has no length: pass a "
                "number of batches"
            )
        return max(1, ceil(length * limit)) if length else 0
    return limit if length is None else min(limit, length)


def why_empty(loader: Any, world_size: int) -> str:
    """Return the reason why a loader has no batches, for an error message; "" if unknown."""
    samples = length_of(getattr(loader, "dataset", None))
    if not samples or not getattr(loader, "drop_last", False):
        return ""
    each = f" on each of {world_size} processes" if world_size > 1 else ""
    return (
        f" (its {samples} samples do not fill one batch of {loader.batch_size}{each} and drop_last "
        "is on)"
    )


# Components


def components(loader: Any) -> list[Any]:
    """Return the loader, its samplers and its dataset, each once."""
    names = ("sampler", "batch_sampler", "dataset")
    inner = getattr(getattr(loader, "batch_sampler", None), "sampler", None)
    found = [loader, *(getattr(loader, name, None) for name in names), inner]
    return list({id(one): one for one in found if one is not None}.values())


def roots_of(loader: Any, name: str) -> Iterator[tuple[str, Any]]:
    """Yield the components of a loader and the loader itself, with their names in messages."""
    parts = attributes(loader) if isinstance(loader, DataLoader) else {}
    for part in ("dataset", "sampler", "batch_sampler", "collate_fn", "worker_init_fn"):
        if parts.get(part) is not None:
            yield f"{part} of {name}", parts[part]
    yield name, loader


def generators_of(loader: Any) -> list[torch.Generator]:
    """Return the generators of the loader and its components; the global one is not included."""
    found = [getattr(component, "generator", None) for component in components(loader)]
    unique = {id(one): one for one in found if isinstance(one, torch.Generator)}
    return list(unique.values())


def set_epoch(loader: Any, epoch: int) -> None:
    """Call ``set_epoch(epoch)`` on the loader and on each component that has it."""
    _call(loader, "set_epoch", epoch)


def set_shard(loader: Any, rank: int, world_size: int) -> None:
    """Call ``set_shard(rank, world_size)`` on the loader and on each component that has it."""
    _call(loader, "set_shard", rank, world_size)


def _call(loader: Any, method: str, *values: int) -> None:
    for component in components(loader):
        function = getattr(component, method, None)
        if function is not None:
            function(*values)


# Workers and indices


def workers_running(loader: Any) -> bool:
    """Return whether the next pass reuses persistent workers that are running already."""
    return _has_persistent_workers(loader) and loader._iterator is not None


def start_workers(loader: Any, generators: Sequence[torch.Generator]) -> None:
    """Start persistent workers if they are not running, without drawing or reading anything."""
    if _has_persistent_workers(loader) and loader._iterator is None:
        with preserve_rng(*generators):
            batches_at(loader, [])


def batches_at(loader: Any, indices: Iterable[Any]) -> Iterator[Batch]:
    """Start a pass over these indices only; persistent workers stay with ``loader``."""
    batches: Any = batches_of(with_indices(loader, indices))
    if _has_persistent_workers(loader):
        batches._index_sampler = loader._index_sampler  # for the passes that follow
        loader._iterator = batches
    return batches  # type: ignore[no-any-return]


def with_indices(loader: Any, indices: Iterable[Any]) -> Any:
    """Return a copy of the loader that reads these indices, without workers so far."""
    twin = copy(loader)
    sampler = "sampler" if loader.batch_sampler is None else "batch_sampler"
    twin.__dict__.update({sampler: indices, "_iterator": None})  # setattr is blocked by DataLoader
    return twin


def _has_persistent_workers(loader: Any) -> bool:
    return is_plain_loader(loader) and loader.persistent_workers and loader.num_workers > 0


# Hugging Face datasets


def has_shuffle_buffer(dataset: Any) -> bool:
    """Return whether this is a streaming Hugging Face dataset that shuffles."""
    left = [attributes(dataset).get("_ex_iterable")]
    while left:
        one = left.pop()
        if type(one).__name__ == "BufferShuffledExamplesIterable":
            return True
        held = attributes(one)
        left += [held["ex_iterable"]] if "ex_iterable" in held else []
        left += held.get("ex_iterables", [])
    return False
