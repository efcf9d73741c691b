"""How a loader is continued in the middle of a pass: by index, by its own state, or by reading."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from time import monotonic
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from stoker.core import dist
from stoker.core.log import get_logger
from stoker.core.seed import random_state, set_random_state, undisturbed
from stoker.core.types import Batch
from stoker.data.dataloader import (
    batches_at,
    generators_of,
    length_of,
    over,
    tell_epoch,
    workers_run,
)
from stoker.data.in_memory import batches_of
from stoker.data.resume.rng import RngSnapshot, set_state, set_states, states_of, torch_state
from stoker.data.resume.skipping_sampler import SkippingSampler, draws_from_torch_alone
from stoker.data.seeded import SeededDataset
from stoker.data.sharding.shard import DataShard, sampler_of
from stoker.data.sharding.shard_plan import Order, ShardPlan, order_drawn, order_of

_log = get_logger()

_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Position:
    """A place within a pass.

    Args:
        position: the batches before it.
        mark: how the pass began.
        own: the generators of loader and sampler at this place.
        workers: how many worker processes made the batches.
    """

    position: int
    mark: RngSnapshot
    own: list[Tensor]
    workers: int


class ResumeStrategy(ABC):
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

    def mark(self) -> RngSnapshot:
        """What must be known of the beginning of a pass to continue it later."""
        return RngSnapshot(random_state(), states_of(self.generators()))

    def fresh(self, epoch: int | None) -> Iterable[Batch]:
        """The batches of a new pass: of that epoch, if it has a number."""
        return self.loader  # type: ignore[no-any-return]

    @abstractmethod
    def resumed(self, place: Position) -> Iterator[Batch]:
        """The batches from there to the end of the pass."""

    def state(self, position: int | None) -> Any:
        """What the loader says of its own position; None where it says nothing.

        Args:
            position: batches handed out of the pass in progress; None between passes.
        """
        return None

    def load(self, state: Mapping[str, Any], place: Position | None) -> None:
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


class SequenceStrategy(ResumeStrategy):
    """A sequence of batches: taken by index."""

    kind = "sequence"

    def mark(self) -> RngSnapshot:
        """Nothing is drawn to know the order."""
        return RngSnapshot({}, [])

    def resumed(self, place: Position) -> Iterator[Batch]:
        """The batches from that index."""
        for index in count(place.position):
            try:
                batch = self.loader[index]
            except IndexError:
                return
            yield batch


class StatefulLoaderStrategy(ResumeStrategy):
    """A loader with ``state_dict``: it knows its position itself."""

    kind = "stateful"

    def __init__(self, loader: Any, name: str) -> None:
        super().__init__(loader, name)
        self._begun = False
        self._loaded: Any = None  # until a pass begins

    def mark(self) -> RngSnapshot:
        """The loader keeps what it needs."""
        if self._loaded is not None and isinstance(self.loader, DataLoader):
            with undisturbed(*self.generators()):
                iter(self.loader)  # it takes up the end of a pass only now, and draws for it
        self._begun, self._loaded = True, None
        return RngSnapshot({}, [])

    def state(self, position: int | None) -> Any:
        """What the loader says of itself."""
        if not self._begun:
            return self._loaded  # to ask a loader that was never read may change it
        return self.loader.state_dict()

    def load_state(self, state: Any) -> None:
        """Give it back to the loader."""
        self._begun, self._loaded = False, state
        self.loader.load_state_dict(state)

    def resumed(self, place: Position) -> Iterator[Batch]:
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


class StatefulDatasetStrategy(ResumeStrategy):
    """A plain loader without workers over a stream that has ``state_dict``."""

    kind = "stateful dataset"

    def __init__(self, loader: Any, name: str) -> None:
        super().__init__(loader, name)
        self._batches: Any = None
        self._loaded: Any = None  # until a pass begins

    def mark(self) -> RngSnapshot:
        """The dataset keeps what it needs."""
        self._loaded = None
        return RngSnapshot({}, [])

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

    def resumed(self, place: Position) -> Iterator[Batch]:
        """What the dataset gives after its state was restored."""
        ran_out, self._loaded = self._loaded["ran_out"], None
        if ran_out:  # its last batch was short; asked again, it would begin anew
            return
        now = random_state()
        batches = self.fresh(None)
        set_random_state(now)
        set_states(self.generators(), place.own)
        yield from batches


class ReplayStrategy(ResumeStrategy):
    """Anything else: what was read is read again and dropped."""

    kind = "iterable"

    def resumed(self, place: Position) -> Iterator[Batch]:
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


class MapStyleStrategy(ResumeStrategy):
    """Makes the indices of the pass again and lets the loader fetch from the place on.

    A pass draws in this order: the seed of the workers, then, when the first index is asked for,
    what the sampler needs; a pass on workers that already run draws no seed. So the pass is begun
    again under the generators of its beginning; `SkippingSampler` skips the indices and hands on to
    the generators of now, before anything is fetched.

    The sampler's own generators are afterwards where skipping left them, since workers are sent
    indices ahead. Without workers they are where they were saved, which is the same unless a
    dataset draws from them too.
    """

    kind = "map-style"

    def mark(self) -> RngSnapshot:
        """The generators a sampler may draw from, and whether workers run already."""
        loader = self.loader
        shared = torch_state if draws_from_torch_alone(loader._index_sampler) else random_state
        return RngSnapshot(shared(), states_of(self.generators()), workers_run(loader))

    def fresh(self, epoch: int | None) -> Iterable[Batch]:
        """A new pass."""
        return batches_of(self.loader)

    def resumed(self, place: Position) -> Iterator[Batch]:
        """The batches from there on; nothing before them is read."""
        loader, own, mark = self.loader, self.generators(), place.mark
        now = random_state()

        def begin() -> None:
            set_state(mark.shared)
            set_states(own, mark.own)

        def arrived() -> None:
            set_random_state(now)
            if loader.num_workers == place.workers == 0:
                set_states(own, place.own)

        if loader.num_workers and not isinstance(loader.dataset, SeededDataset):
            _log.info(
                f"{self.name} continues at batch {place.position + 1}; what a dataset draws at "
                "random in workers is restored only if it is a stoker.data.SeededDataset"
            )
        begin()
        prepare = begin if mark.warm else _nothing
        past = SkippingSampler(
            loader._index_sampler, place.position, prepare=prepare, arrived=arrived
        )
        yield from batches_at(loader, past)


def _nothing() -> None:
    """A pass that starts its workers has drawn their seed by now, as it should."""


class ShardedStrategy(ResumeStrategy):
    """The order of an epoch follows from a seed that all share; its position is in samples.

    So a pass goes on with any number of parts and any batch size: what is left of the order is
    cut anew. A pass that one process began goes on in the order which that one drew.

    Args:
        loader: the loader as the user made it, which is not changed.
        name: what messages call it.
        part: which part of it is read.
        seed: the same on every process.
    """

    kind = "shared"

    def __init__(self, loader: Any, name: str, part: DataShard, seed: int) -> None:
        super().__init__(loader, name)
        self._part, self._seed = part, seed
        self._epoch = 0
        self._drawn = False  # whether one process drew the order of this pass
        self._indices = _Indices(self._cut(len(sampler_of(loader))), loader.batch_sampler)
        self.reader = over(loader, self._indices)

    @property
    def length(self) -> int:
        """The batches of the pass in progress, or of the first."""
        return self._indices.cut.batches

    def mark(self) -> RngSnapshot:
        """What the seed of the workers is drawn from."""
        return RngSnapshot(torch_state(), states_of(self.generators()), workers_run(self.reader))

    def fresh(self, epoch: int | None) -> Iterable[Batch]:
        """This part of the epoch; without a number it is the first."""
        self._epoch, self._drawn = epoch or 0, False
        order = self._order(None)
        self._indices.cut, self._indices.order = self._cut(len(order)), order
        return batches_of(self.reader)

    def resumed(self, place: Position) -> Iterator[Batch]:
        """This part of what is left."""
        now, own = random_state(), self.generators()
        set_state(place.mark.shared)
        set_states(own, place.mark.own)
        batches = batches_of(self.reader)
        set_random_state(now)
        set_states(own, place.own)
        yield from batches

    def state(self, position: int | None) -> dict[str, int]:
        """The seed, and where all parts together are in the order of the epoch."""
        if position is None:
            return {"seed": self._seed}
        return {
            "seed": self._seed,
            "epoch": self._epoch,
            "consumed": self._indices.cut.before(position),
            "drawn": int(self._drawn),
        }

    def load(self, state: Mapping[str, Any], place: Position | None) -> None:
        """Take up the pass that any number of parts, or one process, has saved."""
        saved = state.get("loader_state", {})
        self._seed = saved.get("seed", self._seed)
        if place is None:
            return
        if "epoch" in state:
            tell_epoch(self.loader, state["epoch"])  # the sampler's order may depend on it
        alone = place.position * state["loader"].get("batch_size", 1)
        self._epoch = saved.get("epoch", state.get("epoch", 0))
        self._drawn = bool(saved.get("drawn", 1))
        order = self._order(place.mark)
        consumed = min(saved.get("consumed", alone), len(order))
        self._indices.cut = self._cut(len(order), consumed, place.position)
        self._indices.order = order

    def idle(self, position: int) -> int:
        """Whether the batch before ``position`` is only company."""
        return int(position > 0 and self._indices.cut.idle(position - 1))

    def whole(self, position: int, sizes: Sequence[int]) -> int:
        """The samples of all parts in the batches before ``position``, as the order has them.

        Where a batch is not as large as its number of indices, others are taken to differ as
        this one does. Where nothing is batched, processes tell each other.
        """
        cut, begin = self._indices.cut, position - len(sizes)
        real = range(begin, position - self.idle(position))
        found = sum(sizes[: len(real)])
        if self.loader.batch_sampler is None:
            readers = max(1, dist.world_size() // self._part.count)  # of each part
            return int(dist.all_reduce_sum(found)[0]) // readers
        total = cut.before(position) - cut.before(begin)
        own = sum(len(cut.own(at)) for at in real)
        return total if found in (0, own) else round(total * found / own)

    def _order(self, mark: RngSnapshot | None) -> Order:
        if self._drawn and mark is not None:
            return order_drawn(self.loader, mark)
        return order_of(self.loader, (self._seed + self._epoch) % 2**63)

    def _cut(self, samples: int, consumed: int = 0, position: int = 0) -> ShardPlan:
        batches = self.loader.batch_sampler
        if batches is None:
            return ShardPlan(self._part, 1, False, samples, consumed, position)
        return ShardPlan(
            self._part, batches.batch_size, batches.drop_last, samples, consumed, position
        )


class _Indices:
    """The batches of indices of one part, for a loader to fetch."""

    def __init__(self, cut: ShardPlan, batched: Any) -> None:
        self.cut = cut
        self.order: Order = ()
        self._batched = batched is not None

    def __iter__(self) -> Iterator[Any]:
        cut, order = self.cut, self.order
        for position in range(cut.position, cut.batches):
            own = cut.own(position)
            picked = order[own.start : own.stop : own.step]
            indices = picked.tolist() if isinstance(picked, Tensor) else list(picked)
            yield indices if self._batched else indices[0]

    def __len__(self) -> int:
        return self.cut.batches
