"""How many batches a loader has."""

from collections.abc import Iterable, Iterator, Sequence, Sized
from copy import copy
from math import ceil
from typing import Any

import torch
from torch.utils.data import DataLoader

from stoker.core.seed import undisturbed
from stoker.core.types import Batch
from stoker.data.in_memory import batches_of


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


def owners(loader: Any) -> Iterator[Any]:
    """The loader and its parts that decide which samples come, and how they are made."""
    yield loader
    for name in ("sampler", "batch_sampler", "dataset"):
        part = getattr(loader, name, None)
        if part is not None:
            yield part
    inner = getattr(getattr(loader, "batch_sampler", None), "sampler", None)
    if inner is not None and inner is not loader.sampler:
        yield inner


def generators_of(loader: Any) -> list[torch.Generator]:
    """The generators that the loader and its parts draw from, beside the global one."""
    found = [getattr(owner, "generator", None) for owner in owners(loader)]
    unique = {id(one): one for one in found if isinstance(one, torch.Generator)}
    return list(unique.values())


def tell_epoch(loader: Any, epoch: int) -> None:
    """Call ``set_epoch`` wherever the loader or a part of it has it."""
    _tell(loader, "set_epoch", epoch)


def tell_part(loader: Any, index: int, count: int) -> None:
    """Call ``set_part`` wherever the loader or a part of it has it."""
    _tell(loader, "set_part", index, count)


def _tell(loader: Any, method: str, *values: int) -> None:
    for owner in {id(owner): owner for owner in owners(loader)}.values():
        tell = getattr(owner, method, None)
        if tell is not None:
            tell(*values)


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
