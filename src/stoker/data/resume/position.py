"""Which way a loader is continued, and whether it is still the loader whose state was saved."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.utils.data import BatchSampler, DataLoader, IterableDataset

from stoker.core import dist
from stoker.core.log import get_logger
from stoker.core.types import Stateful
from stoker.data.dataloader import generators_of, length_of
from stoker.data.resume.strategies import (
    MapStyleStrategy,
    ReplayStrategy,
    ResumeStrategy,
    SequenceStrategy,
    ShardedStrategy,
    StatefulDatasetStrategy,
    StatefulLoaderStrategy,
)
from stoker.data.sharding.shard import DataShard, way_of

_log = get_logger()

_ITERATE_BY_INDEX = (list.__iter__, tuple.__iter__, range.__iter__, Sequence.__iter__)
_WORKERS = {"num_workers", "persistent_workers"}
_HARMLESS = {"map-style": _WORKERS, "shared": _WORKERS}
"""By kind of loader, what may differ within a pass: these do not decide which samples come."""


def strategy_for(loader: Any, name: str, part: DataShard) -> ResumeStrategy:
    """The way to go through this loader, and to continue it in the middle of a pass."""
    if way_of(loader, part) == "cut":
        return ShardedStrategy(
            loader, name, part, int(dist.broadcast_from_rank0(str(torch.initial_seed())))
        )
    return _kind_of(loader)(loader, name)


def is_recut(saved: Mapping[str, Any], found: Mapping[str, Any]) -> bool:
    """Whether a position counts samples that all processes share, on one side at least."""
    kinds = {saved["kind"], found["kind"]}
    mine = "processes" in saved or "processes" in found
    return "shared" in kinds and kinds <= {"shared", "map-style"} and not mine


def _kind_of(loader: Any) -> type[ResumeStrategy]:
    if isinstance(loader, Stateful):
        return StatefulLoaderStrategy
    if isinstance(loader, Sequence) and type(loader).__iter__ in _ITERATE_BY_INDEX:
        return SequenceStrategy
    if isinstance(loader, DataLoader) and type(loader).__iter__ is DataLoader.__iter__:
        dataset: Any = loader.dataset
        if not isinstance(dataset, IterableDataset):
            return MapStyleStrategy
        if isinstance(dataset, Stateful) and loader.num_workers == 0:
            return StatefulDatasetStrategy
    return ReplayStrategy


def description_of(seek: ResumeStrategy, processes: int) -> dict[str, int | str]:
    """What of a loader must stay the same for a position in it to mean the same.

    Args:
        seek: the way to go through it.
        processes: how many there are.
    """
    loader = seek.loader
    known: dict[str, Any] = {
        "kind": seek.kind,
        "batches": length_of(loader),
        "generators": len(generators_of(loader)),
    }
    if processes > 1 and seek.kind != "shared":
        known["processes"] = processes  # that each have a position of their own
    if isinstance(loader, DataLoader):
        known["num_workers"] = loader.num_workers
        known["persistent_workers"] = int(loader.persistent_workers)
        known["batch_size"] = getattr(loader.batch_sampler, "batch_size", loader.batch_size)
        if seek.kind in ("map-style", "shared"):
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
    harmless = _HARMLESS.get(str(found["kind"]), set())
    if is_recut(saved, found):
        words.pop("kind", None)
        harmless = harmless | {"batch_size", "batches"}
    elif words.pop("processes", None) is not None and within_pass:
        was, now = saved.get("processes", 1), found.get("processes", 1)
        _log.warning(
            f"{name} is read by each process for itself, and processes were {was}, are {now}: some "
            "samples of this pass may come twice or not at all"
        )
    if not words:
        return
    text = f"{name} has changed since its state was saved: {', '.join(words.values())}"
    if within_pass and words.keys() - harmless:
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
