"""Which way a loader is continued, and whether it is still the loader whose state was saved."""

from collections.abc import Sequence
from typing import Any

from torch.utils.data import BatchSampler, DataLoader, IterableDataset

from stoker.data.parts import generators_of
from stoker.data.seek import DatasetStateSeek, IndexSeek, OwnStateSeek, ReplaySeek, Seek, Stateful
from stoker.data.seek_loader import LoaderSeek
from stoker.log import get_logger

_log = get_logger()

_ITERATE_BY_INDEX = (list.__iter__, tuple.__iter__, range.__iter__, Sequence.__iter__)
_HARMLESS = {"map-style": {"num_workers", "persistent_workers"}}
"""By kind of loader, what may differ within a pass: these do not decide which samples come."""


def seek_of(loader: Any, name: str) -> Seek:
    """The way to continue this loader in the middle of a pass."""
    return _kind_of(loader)(loader, name)


def _kind_of(loader: Any) -> type[Seek]:
    if isinstance(loader, Stateful):
        return OwnStateSeek
    if isinstance(loader, Sequence) and type(loader).__iter__ in _ITERATE_BY_INDEX:
        return IndexSeek
    if isinstance(loader, DataLoader) and type(loader).__iter__ is DataLoader.__iter__:
        dataset: Any = loader.dataset
        if not isinstance(dataset, IterableDataset):
            return LoaderSeek
        if isinstance(dataset, Stateful) and loader.num_workers == 0:
            return DatasetStateSeek
    return ReplaySeek


def description_of(seek: Seek, batches: int | None) -> dict[str, int | str]:
    """What of a loader must stay the same for a position in it to mean the same."""
    loader = seek.loader
    known: dict[str, Any] = {
        "kind": seek.kind,
        "batches": batches,
        "generators": len(generators_of(loader)),
    }
    if isinstance(loader, DataLoader):
        known["num_workers"] = loader.num_workers
        known["persistent_workers"] = int(loader.persistent_workers)
        known["batch_size"] = getattr(loader.batch_sampler, "batch_size", loader.batch_size)
        if seek.kind == "map-style":
            known["sampler"] = _name_of(loader._index_sampler)
            known["samples"] = _samples_of(loader.dataset)
    return {name: value for name, value in known.items() if value is not None}


def check_unchanged(
    name: str, saved: dict[str, int | str], found: dict[str, int | str], *, within_pass: bool
) -> None:
    """Refuse to continue a pass over another loader; say so where it does no harm."""
    words = {
        key: f"{key} was {saved.get(key, 'unknown')}, is {found.get(key, 'unknown')}"
        for key in [*saved, *(key for key in found if key not in saved)]
        if saved.get(key) != found.get(key)
    }
    if not words:
        return
    text = f"{name} has changed since its state was saved: {', '.join(words.values())}"
    if within_pass and words.keys() - _HARMLESS.get(str(found["kind"]), set()):
        raise ValueError(f"{text}; expected the same loader to continue in the middle of a pass")
    _log.warning(f"{text}; the run may differ from one that was never interrupted")


def _name_of(sampler: Any) -> str:
    name = type(sampler).__name__
    if isinstance(sampler, BatchSampler):
        return f"{name} of {type(sampler.sampler).__name__}"
    return name


def _samples_of(dataset: Any) -> int | None:
    try:
        return len(dataset)
    except TypeError:
        return None
