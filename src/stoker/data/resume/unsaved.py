"""Report state of a loader that a checkpoint cannot hold, when a run starts."""

from collections.abc import Iterator
from typing import Any

from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset

from stoker.core.attributes import attributes
from stoker.core.bytecode import Facts, as_function, facts_of
from stoker.core.log import get_logger
from stoker.core.object_search import RNGS, Found, name_of, search
from stoker.core.user_state import UserState
from stoker.data.seeded import SeededDataset

_log = get_logger()


def report_unsaved(loader: Any, name: str, user_state: UserState) -> None:
    """Log a warning for each kind of state that is lost when the run is resumed.

    Args:
        loader: the training data.
        name: its name in messages.
        user_state: the state that is saved.
    """
    user_state.report_unsavable()
    if isinstance(loader, DataLoader) and loader.num_workers:
        for problem in _problems(loader):
            _log.warning(f"{name}: {problem}, or check with 'stoker prove'")


def _problems(loader: Any) -> Iterator[str]:
    """Yield what is lost because worker processes read the data."""
    dataset = loader.dataset
    yield from _ahead(loader)
    if loader.persistent_workers:
        yield from _unseen_epochs(dataset)
    elif isinstance(dataset, IterableDataset):
        return  # it is read again from the beginning of the pass, by new workers
    reading = search([("dataset", dataset)])
    drawn = _draws(reading) if not isinstance(dataset, SeededDataset) else ""
    if drawn:
        yield (
            f"its dataset draws random numbers ({drawn}) in worker processes, which cannot be "
            "saved: samples after a resume may differ; wrap the dataset in "
            "stoker.data.SeededDataset"
        )
    collating = search([("collate_fn", loader.collate_fn)])
    if drawn := _draws(collating):
        yield (
            f"its collate_fn draws random numbers ({drawn}) in worker processes, which cannot be "
            "saved: batches after a resume may differ; draw them in the dataset and wrap it in "
            "stoker.data.SeededDataset"
        )
    for what in [*changing_values(reading), *changing_values(collating)]:
        yield (
            f"{what} changes while worker processes read, and cannot be saved: samples after a "
            "resume may differ; make it a function of the index, or read without workers"
        )


def _ahead(loader: Any) -> Iterator[str]:
    sampler = search([("sampler", loader.sampler), ("batch_sampler", loader.batch_sampler)])
    if any("torch" in one.draws_while_yielding for one in _facts(sampler)):
        yield (
            "its sampler draws from torch's global generator while it is read, ahead of training "
            "because of worker processes: the order after a resume may differ; draw from a "
            "torch.Generator of its own"
        )


def _unseen_epochs(dataset: Any) -> Iterator[str]:
    for path, owner in search([("dataset", dataset)]).owners.items():
        function = as_function(getattr(type(owner), "set_epoch", None))
        if function is None or isinstance(owner, SeededDataset):
            continue
        held = attributes(owner)
        shared = [n for n in facts_of(function).sets if _is_shared(held.get(n))]
        if facts_of(function).sets and not shared:
            yield (
                f"{path}.set_epoch does not reach persistent worker processes, which keep the "
                "dataset of the first epoch, but new ones after a resume do not: use "
                "persistent_workers=False"
            )


def _is_shared(value: Any) -> bool:
    return isinstance(value, Tensor) and bool(value.is_shared())  # type: ignore[no-untyped-call]


def _facts(found: Found) -> list[Facts]:
    return [facts_of(function) for function in found.functions.values()]


def _draws(found: Found) -> str:
    return ", ".join(sorted(set().union(*(one.draws for one in _facts(found)))))


def changing_values(found: Found) -> list[str]:
    """Return what reading changes: generators that it uses, and values that it counts."""
    used = set().union(*(one.called for one in _facts(found)))
    used |= {name for one in _facts(found) for _, name in one.variables}
    counted = set().union(*(one.counts for one in _facts(found)))
    return [
        f"{name_of(place)} ({type(value).__name__})"
        for place, value in found.values.items()
        if (isinstance(value, RNGS) and (place[1] in used or not isinstance(place[1], str)))
        or (not isinstance(value, RNGS) and place[1] in counted)
    ]
