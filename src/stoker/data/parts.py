"""The parts of a loader: what they draw from, and who wants to know the epoch or its share."""

from collections.abc import Iterator
from typing import Any

import torch


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
