"""Properties of loaders: is this still the loader whose position was saved?"""

from collections.abc import Mapping
from typing import Any, TypeAlias

from torch.utils.data import BatchSampler, DataLoader

from stoker.core.log import get_logger
from stoker.data.dataloader import generators_of, length_of
from stoker.data.resume.strategies import ResumeStrategy

LoaderProperties: TypeAlias = dict[str, int | str]

_log = get_logger()

_WORKER_OPTIONS = {"num_workers", "persistent_workers"}
_HARMLESS = {"map-style": _WORKER_OPTIONS, "sharded": _WORKER_OPTIONS}
"""Options that may change within a pass, by kind of loader: they do not affect the samples."""


def properties_of(strategy: ResumeStrategy, world_size: int) -> LoaderProperties:
    """Return the properties of a loader that a saved position depends on.

    Args:
        strategy: the strategy that reads the loader.
        world_size: the number of ranks that read data.
    """
    loader = strategy.loader
    known: dict[str, Any] = {
        "kind": strategy.kind,
        "batches": length_of(loader),
        "generators": len(generators_of(loader)),
    }
    if world_size > 1 and strategy.kind not in ("sharded", "stream"):
        known["processes"] = world_size  # each with its own position
    if isinstance(loader, DataLoader):
        known["num_workers"] = loader.num_workers
        known["persistent_workers"] = int(loader.persistent_workers)
        known["batch_size"] = getattr(loader.batch_sampler, "batch_size", loader.batch_size)
        if strategy.kind in ("map-style", "sharded"):
            known["sampler"] = _sampler_name(loader._index_sampler)
            known["samples"] = length_of(loader.dataset)
    return {name: value for name, value in known.items() if value is not None}


def is_resharded(saved: Mapping[str, Any], found: Mapping[str, Any]) -> bool:
    """Return whether the rest of a saved pass is sharded again, or was sharded when saved."""
    kinds = {saved["kind"], found["kind"]}
    per_rank = "processes" in saved or "processes" in found
    return "sharded" in kinds and kinds <= {"sharded", "map-style"} and not per_rank


def check_loader(
    name: str, saved: LoaderProperties, found: LoaderProperties, *, within_pass: bool
) -> None:
    """Reject a loader that cannot resume the saved pass; warn about any other change.

    Args:
        name: the name of the loader in messages.
        saved: the properties in the saved state.
        found: the properties of the current loader.
        within_pass: whether the state was saved in the middle of a pass.

    Raises:
        ValueError: if a pass in progress would continue with different batches.
    """
    changes = {
        key: f"{key} was {saved.get(key, 'unknown')}, is {found.get(key, 'unknown')}"
        for key in [*saved, *(key for key in found if key not in saved)]
        if saved.get(key) != found.get(key)
    }
    harmless = _HARMLESS.get(str(found["kind"]), set())
    if is_resharded(saved, found):
        changes.pop("kind", None)
        harmless = harmless | {"batch_size", "batches"}
    elif changes.pop("processes", None) is not None and within_pass:
        _log.warning(
            f"{name}: each process reads its own data, and the number of processes changed from "
            f"{saved.get('processes', 1)} to {found.get('processes', 1)}: some samples of this "
            "epoch may be repeated or skipped"
        )
    if not changes:
        return
    message = f"{name} has changed since its state was saved: {', '.join(changes.values())}"
    if within_pass and changes.keys() - harmless:
        raise ValueError(f"{message}; expected the same loader to resume in the middle of a pass")
    _log.warning(f"{message}; the results may differ from those of an uninterrupted run")


def _sampler_name(sampler: Any) -> str:
    name = type(sampler).__name__
    if isinstance(sampler, BatchSampler):
        return f"{name} of {type(sampler.sampler).__name__}"
    return name
