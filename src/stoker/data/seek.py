"""How a loader is continued in the middle of a pass: by index, by its own state, or by reading."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from time import monotonic
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from stoker.data.length import length_of
from stoker.data.parts import generators_of
from stoker.data.rng import State, set_state, set_states, states_of
from stoker.data.seeded import SeededDataset
from stoker.log import get_logger
from stoker.seed import random_state, set_random_state, undisturbed
from stoker.types import Batch

_log = get_logger()

_SECONDS = 5.0


@runtime_checkable
class Stateful(Protocol):
    """Something that knows its own position."""

    def state_dict(self) -> Any:
        """The position."""

    def load_state_dict(self, state_dict: Any) -> Any:
        """Take up a position."""


@dataclass(frozen=True, slots=True)
class Mark:
    """How the generators were when a pass began.

    Args:
        shared: the global ones, as far as the loader may draw from them.
        own: those of loader and sampler.
        warm: whether the loader's workers ran already.
    """

    shared: State
    own: list[Tensor]
    warm: bool = False


@dataclass(frozen=True, slots=True)
class Place:
    """A place within a pass.

    Args:
        position: the batches before it.
        mark: how the pass began.
        own: the generators of loader and sampler at this place.
        workers: how many worker processes made the batches.
    """

    position: int
    mark: Mark
    own: list[Tensor]
    workers: int


class Seek(ABC):
    """The way in which one kind of loader is continued.

    Whoever iterates over what `resumed` returns finds the global generators afterwards as they
    were before, but for what the batches to come draw.
    """

    kind: str

    def __init__(self, loader: Any, name: str) -> None:
        self.loader = loader
        self.reader = loader  # whose workers make the batches
        self.name = name

    @property
    def length(self) -> int | None:
        """The batches of a pass, None where the loader does not know it."""
        return length_of(self.loader)

    def generators(self) -> list[torch.Generator]:
        """The generators of the loader and its parts."""
        return generators_of(self.loader)

    def mark(self) -> Mark:
        """What must be known of the beginning of a pass to continue it later."""
        return Mark(random_state(), states_of(self.generators()))

    def fresh(self, epoch: int | None) -> Iterable[Batch]:
        """The batches of a new pass: of that epoch, if it has a number."""
        return self.loader  # type: ignore[no-any-return]

    @abstractmethod
    def resumed(self, place: Place) -> Iterator[Batch]:
        """The batches from there to the end of the pass."""

    def state(self, position: int | None) -> Any:
        """What the loader says of its own position; None where it says nothing.

        Args:
            position: batches handed out of the pass in progress; None between passes.
        """
        return None

    def load(self, state: Mapping[str, Any], place: Place | None) -> None:
        """Take up the state of a feed; ``place`` is where it is within a pass."""
        if "loader_state" in state and state["loader"]["kind"] == self.kind:
            self.load_state(state["loader_state"])

    def load_state(self, state: Any) -> None:
        """Give it back, where the loader had something to say."""
        raise TypeError(f"{self.name} keeps no position itself, but one was saved: {state!r}")

    def idle(self, position: int) -> int:
        """How many of the batches just before ``position`` only keep other processes company."""
        return 0

    def whole(self, position: int, sizes: Sequence[int]) -> int:
        """The samples, over all processes, of the batches of these sizes before ``position``."""
        return sum(sizes)


class IndexSeek(Seek):
    """A sequence of batches: taken by index."""

    kind = "sequence"

    def mark(self) -> Mark:
        """Nothing is drawn to know the order."""
        return Mark({}, [])

    def resumed(self, place: Place) -> Iterator[Batch]:
        """The batches from that index."""
        for index in count(place.position):
            try:
                batch = self.loader[index]
            except IndexError:
                return
            yield batch


class OwnStateSeek(Seek):
    """A loader with ``state_dict``: it knows its position itself."""

    kind = "stateful"

    def __init__(self, loader: Any, name: str) -> None:
        super().__init__(loader, name)
        self._begun = False
        self._loaded: Any = None  # until a pass begins

    def mark(self) -> Mark:
        """The loader keeps what it needs."""
        if self._loaded is not None and isinstance(self.loader, DataLoader):
            with undisturbed(*self.generators()):
                iter(self.loader)  # it takes up the end of a pass only now, and draws for it
        self._begun, self._loaded = True, None
        return Mark({}, [])

    def state(self, position: int | None) -> Any:
        """What the loader says of itself."""
        if not self._begun:
            return self._loaded  # to ask a loader that was never read may change it
        return self.loader.state_dict()

    def load_state(self, state: Any) -> None:
        """Give it back to the loader."""
        self._begun, self._loaded = False, state
        self.loader.load_state_dict(state)

    def resumed(self, place: Place) -> Iterator[Batch]:
        """What the loader gives after its state was restored."""
        self._begun, self._loaded = True, None
        if place.workers and not isinstance(self.loader.dataset, SeededDataset):
            _log.info(
                f"{self.name} restores its position itself; what its {place.workers} workers draw "
                "at random is restored only if the dataset is a stoker.data.SeededDataset"
            )
        now = random_state()
        batches = iter(self.loader)
        set_random_state(now)
        set_states(self.generators(), place.own)
        yield from batches


class DatasetStateSeek(Seek):
    """A plain loader without workers over a stream that has ``state_dict``."""

    kind = "stateful dataset"

    def __init__(self, loader: Any, name: str) -> None:
        super().__init__(loader, name)
        self._batches: Any = None
        self._loaded: Any = None  # until a pass begins

    def mark(self) -> Mark:
        """The dataset keeps what it needs."""
        self._loaded = None
        return Mark({}, [])

    def fresh(self, epoch: int | None) -> Iterable[Batch]:
        """A new pass; its iterator knows whether the dataset has come to its end."""
        self._batches = iter(self.loader)
        return self._batches  # type: ignore[no-any-return]

    def state(self, position: int | None) -> Any:
        """What the dataset says of itself in the middle of a pass, and whether it has ended."""
        if self._loaded is not None or position is None:
            return self._loaded
        ran_out = self._batches._dataset_fetcher.ended
        return {"dataset": self.loader.dataset.state_dict(), "ran_out": int(ran_out)}

    def load_state(self, state: Any) -> None:
        """Give it back to the dataset."""
        self._loaded = state
        self.loader.dataset.load_state_dict(state["dataset"])

    def resumed(self, place: Place) -> Iterator[Batch]:
        """What the dataset gives after its state was restored."""
        ran_out, self._loaded = self._loaded["ran_out"], None
        if ran_out:  # its last batch was short; asked again, it would begin anew
            return
        now = random_state()
        batches = self.fresh(None)
        set_random_state(now)
        set_states(self.generators(), place.own)
        yield from batches


class ReplaySeek(Seek):
    """Anything else: what was read is read again and dropped."""

    kind = "iterable"

    def resumed(self, place: Place) -> Iterator[Batch]:
        """The batches that follow those read again."""
        _log.warning(
            f"{self.name} cannot seek: its first {place.position} batches are read again and "
            "dropped (a map-style dataset, or a loader with state_dict, is continued at once)"
        )
        now = random_state()
        set_state(place.mark.shared)
        set_states(self.generators(), place.mark.own)
        batches = iter(self.loader)
        self._drop(batches, place.position)
        set_random_state(now)
        set_states(self.generators(), place.own)
        yield from batches

    def _drop(self, batches: Iterator[Batch], total: int) -> None:
        said = monotonic()
        for done in range(total):
            try:
                next(batches)
            except StopIteration:
                raise ValueError(
                    f"{self.name} ended after {done} batches, but {total} had been read when the "
                    "state was saved: expected the same data"
                ) from None
            if monotonic() - said > _SECONDS:
                said = monotonic()
                _log.info(f"{self.name}: {done + 1} of {total} batches read again")
