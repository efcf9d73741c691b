"""`SharedSeek`: a plain `DataLoader` of which every process reads a part."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from torch import Tensor

from stoker import dist
from stoker.data.cut import Cut, Order, order_drawn, order_of
from stoker.data.gather import batches_of
from stoker.data.parts import tell_epoch
from stoker.data.rng import set_state, set_states, states_of, torch_state
from stoker.data.seek import Mark, Place, Seek
from stoker.data.share import Part, sampler_of
from stoker.data.workers import over, workers_run
from stoker.seed import random_state, set_random_state
from stoker.types import Batch


class SharedSeek(Seek):
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

    def __init__(self, loader: Any, name: str, part: Part, seed: int) -> None:
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

    def mark(self) -> Mark:
        """What the seed of the workers is drawn from."""
        return Mark(torch_state(), states_of(self.generators()), workers_run(self.reader))

    def fresh(self, epoch: int | None) -> Iterable[Batch]:
        """This part of the epoch; without a number it is the first."""
        self._epoch, self._drawn = epoch or 0, False
        order = self._order(None)
        self._indices.cut, self._indices.order = self._cut(len(order)), order
        return batches_of(self.reader)

    def resumed(self, place: Place) -> Iterator[Batch]:
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

    def load(self, state: Mapping[str, Any], place: Place | None) -> None:
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
            return int(dist.all_sum(found)[0]) // readers
        total = cut.before(position) - cut.before(begin)
        own = sum(len(cut.own(at)) for at in real)
        return total if found in (0, own) else round(total * found / own)

    def _order(self, mark: Mark | None) -> Order:
        if self._drawn and mark is not None:
            return order_drawn(self.loader, mark)
        return order_of(self.loader, (self._seed + self._epoch) % 2**63)

    def _cut(self, samples: int, consumed: int = 0, position: int = 0) -> Cut:
        batches = self.loader.batch_sampler
        if batches is None:
            return Cut(self._part, 1, False, samples, consumed, position)
        return Cut(self._part, batches.batch_size, batches.drop_last, samples, consumed, position)


class _Indices:
    """The batches of indices of one part, for a loader to fetch."""

    def __init__(self, cut: Cut, batched: Any) -> None:
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
