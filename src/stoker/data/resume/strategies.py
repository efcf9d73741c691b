"""How to read a loader and resume it in the middle of a pass: one `ResumeStrategy` per kind.

    SequenceStrategy          a list or tuple of batches         index into it
    StatefulLoaderStrategy    a loader with ``state_dict``       restore its state
    StatefulDatasetStrategy   a stream with ``state_dict``       restore its state
    MapStyleStrategy          a map-style `DataLoader`           skip indices, read no data
    ShardedStrategy           the same, split between ranks      split the remaining indices
    ReplayStrategy            any other iterable                 read and discard

`strategy_for` chooses one.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain, count
from time import monotonic
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
)

from stoker.core import dist
from stoker.core.bytecode import facts_of
from stoker.core.log import get_logger
from stoker.core.object_search import RNGS, search
from stoker.core.seed import preserve_rng, random_state, seed_all, set_random_state
from stoker.core.types import Batch, Stateful
from stoker.core.user_state import UserState
from stoker.data.dataloader import (
    batches_at,
    generators_of,
    has_shuffle_buffer,
    is_plain_loader,
    length_of,
    set_epoch,
    with_indices,
    workers_running,
)
from stoker.data.in_memory import batches_of
from stoker.data.resume.position import ResumePoint
from stoker.data.resume.rng import RngSnapshot, generator_states, set_generator_states, torch_state
from stoker.data.samplers import SkippingSampler, draws_only_from_torch, is_plain
from stoker.data.seeded import SeededDataset
from stoker.data.sharding import DataShard, ShardingMode, ShardPlan, sampler_of, sharding_mode

Order: TypeAlias = Sequence[Any] | Tensor
"""The dataset indices of an entire pass."""

_log = get_logger()

_LOG_INTERVAL = 5.0
_ITERATE_BY_INDEX = (list.__iter__, tuple.__iter__, range.__iter__, Sequence.__iter__)


class ResumeStrategy(ABC):
    """How to read one kind of loader, and how to resume a pass over it.

    After the first batch of a resumed pass, the global generators are as they were before it,
    apart from what that batch itself has drawn.

    Args:
        loader: the loader as the user built it.
        name: the name of the loader in messages.

    Attributes:
        kind: the kind of loader, as stored with a position.
        reader: the loader whose workers produce the batches.
        length: the number of batches in a pass; None if the loader does not know it.
        user_state: the state of the loader that has no ``state_dict``; None if it is not tracked.
    """

    kind: str
    user_state: UserState | None = None

    def __init__(self, loader: Any, name: str) -> None:
        self.loader = loader
        self.reader = loader
        self.name = name
        self.length = length_of(loader)

    def generators(self) -> list[torch.Generator]:
        """Return the generators of the loader and its components."""
        return generators_of(self.loader)

    def snapshot(self) -> RngSnapshot:
        """Capture what is needed to resume a pass that starts now."""
        return RngSnapshot(random_state(), generator_states(self.generators()))

    def start(self, epoch: int | None) -> Iterable[Batch]:
        """Return the batches of a new pass, for the given epoch if epochs are counted."""
        return self.loader  # type: ignore[no-any-return]

    def reshard(self, shard: DataShard) -> bool:
        """Read another shard from the next batch on; return False if that is not possible."""
        return False

    @abstractmethod
    def resume(self, point: ResumePoint) -> Iterator[Batch]:
        """Yield the batches from ``point`` to the end of the pass."""

    def state(self, batches: int | None) -> Any:
        """Return the position that the loader itself keeps; None if it keeps none.

        Args:
            batches: the number of batches handed out in this pass; None between passes.
        """
        return None

    def load(self, state: Mapping[str, Any], point: ResumePoint | None) -> None:
        """Restore the state of a feeder; ``point`` is its position within a pass."""
        if "loader_state" in state and state["loader"]["kind"] == self.kind:
            self.load_loader_state(state["loader_state"])

    def load_loader_state(self, state: Any) -> None:
        """Restore what `state` returned; implemented by strategies that return a state."""
        raise NotImplementedError

    def padding(self, batches: int) -> int:
        """Return how many of the first ``batches`` of the pass, at their end, are padding."""
        return 0

    def global_size(self, batches: int, sizes: Sequence[int]) -> int:
        """Return the samples of all ranks in a window that ends after ``batches``.

        Args:
            batches: the number of batches handed out in this pass.
            sizes: the sizes of this rank's batches in the window.
        """
        return sum(sizes)

    @contextmanager
    def _rng_of(self, point: ResumePoint) -> Iterator[None]:
        """Leave the global generators as they are now, and those of the loader as at ``point``."""
        before = random_state()
        yield
        set_random_state(before)
        set_generator_states(self.generators(), point.generators)
        self._settle(point)

    def _rewind(self, start: RngSnapshot) -> None:
        """Restore the generators and the state of the loader to the start of a pass."""
        start.restore(self.generators())
        if self.user_state is not None:
            self.user_state.rewind(start.user_state)

    def _settle(self, point: ResumePoint) -> None:
        """Restore the state of the loader to ``point``, after reading or skipping up to it."""
        if self.user_state is None:
            return
        if self._is_synchronous and not point.num_workers:
            self.user_state.restore(point.user_state)
        else:
            self.user_state.settle(point.user_state)

    @property
    def _is_synchronous(self) -> bool:
        """Whether nothing is read ahead of the batches that are handed out."""
        return isinstance(self.loader, DataLoader) and self.loader.num_workers == 0


class SequenceStrategy(ResumeStrategy):
    """Reads a sequence of batches by index."""

    kind = "sequence"

    def snapshot(self) -> RngSnapshot:
        """Capture nothing: the order is fixed."""
        return RngSnapshot()

    def resume(self, point: ResumePoint) -> Iterator[Batch]:
        """Yield the batches from that index."""
        self._settle(point)
        for index in count(point.batches):
            try:
                batch = self.loader[index]
            except IndexError:
                return
            yield batch


class StatefulLoaderStrategy(ResumeStrategy):
    """Saves and restores the position of a loader through its ``state_dict``."""

    kind = "stateful"

    def __init__(self, loader: Any, name: str) -> None:
        super().__init__(loader, name)
        self._started = False
        self._restored: Any = None  # until a pass starts

    def _settle(self, point: ResumePoint) -> None:
        """Restore nothing: the loader's own state was restored last and takes precedence."""

    def snapshot(self) -> RngSnapshot:
        """Capture nothing: the loader keeps what it needs."""
        if self._restored is not None and isinstance(self.loader, DataLoader):
            with preserve_rng(*self.generators()):
                iter(self.loader)  # applies a state saved between passes, and draws for it
        self._started, self._restored = True, None
        return RngSnapshot()

    def state(self, batches: int | None) -> Any:
        """Return the state of the loader."""
        if not self._started:
            return self._restored  # state_dict() of a loader that was never read may change it
        return self.loader.state_dict()

    def load_loader_state(self, state: Any) -> None:
        """Restore the state of the loader."""
        self._started, self._restored = False, state
        self.loader.load_state_dict(state)

    def resume(self, point: ResumePoint) -> Iterator[Batch]:
        """Yield what the restored loader yields."""
        self._started, self._restored = True, None
        if point.num_workers and not isinstance(self.loader.dataset, SeededDataset):
            _log.info(
                f"{self.name} restores its own position; random numbers drawn in its "
                f"{point.num_workers} workers are restored only if the dataset is a "
                "stoker.data.SeededDataset"
            )
        with self._rng_of(point):
            batches = iter(self.loader)
        yield from batches


class StatefulDatasetStrategy(ResumeStrategy):
    """Saves and restores a stream with ``state_dict`` under a `DataLoader` without workers."""

    kind = "stateful dataset"

    def __init__(self, loader: Any, name: str) -> None:
        super().__init__(loader, name)
        self._batches: Any = None
        self._restored: Any = None  # until a pass starts

    def _settle(self, point: ResumePoint) -> None:
        """Restore nothing: the loader's own state was restored last and takes precedence."""

    def snapshot(self) -> RngSnapshot:
        """Capture nothing: the dataset keeps what it needs."""
        self._restored = None
        return RngSnapshot()

    def start(self, epoch: int | None) -> Iterable[Batch]:
        """Return the iterator of a new pass, which knows whether the dataset has ended."""
        self._batches = iter(self.loader)
        return self._batches  # type: ignore[no-any-return]

    def state(self, batches: int | None) -> Any:
        """Return the state of the dataset within a pass, and whether it has ended."""
        if self._restored is not None or batches is None:
            return self._restored
        ended = self._batches._dataset_fetcher.ended
        return {"dataset": self.loader.dataset.state_dict(), "ended": int(ended)}

    def load_loader_state(self, state: Any) -> None:
        """Restore the state of the dataset."""
        self._restored = state
        self.loader.dataset.load_state_dict(state["dataset"])

    def resume(self, point: ResumePoint) -> Iterator[Batch]:
        """Yield what the restored dataset yields."""
        ended, self._restored = self._restored["ended"], None
        if ended:  # its last batch was short; another iterator would start it from scratch
            return
        with self._rng_of(point):
            batches = self.start(None)
        yield from batches


class ReplayStrategy(ResumeStrategy):
    """Reads any other iterable; to resume, reads the first batches again and discards them."""

    kind = "iterable"

    def resume(self, point: ResumePoint) -> Iterator[Batch]:
        """Yield the batches after those that are discarded."""
        _log.warning(
            f"{self.name} cannot skip batches: reading and discarding the first {point.batches} "
            "(a map-style dataset, or a loader with state_dict, resumes immediately)"
        )
        with self._rng_of(point):
            self._rewind(point.start)
            batches = iter(self.loader)
            self._discard(batches, point.batches)
        yield from batches

    def _discard(self, batches: Iterator[Batch], total: int) -> None:
        logged = monotonic()
        for done in range(total):
            try:
                next(batches)
            except StopIteration:
                raise ValueError(
                    f"{self.name} ended after {done} batches, but {total} had been read when the "
                    "state was saved: expected the same data"
                ) from None
            if monotonic() - logged > _LOG_INTERVAL:
                logged = monotonic()
                _log.info(f"{self.name}: {done + 1} of {total} batches discarded")


class MapStyleStrategy(ResumeStrategy):
    """Reads a map-style `DataLoader`; to resume, skips indices without reading their samples.

    A pass first draws the seed of the workers, unless they are running already, and then, with the
    first index, whatever the sampler needs. So a resumed pass begins with the generators as they
    were at its start, and `SkippingSampler` switches to the current ones after the skipped indices,
    before a sample is fetched.

    Workers are sent indices ahead, so the loader's generators stay where skipping left them.
    Without workers they are set to their saved state, which only differs if the dataset draws from
    them too.
    """

    kind = "map-style"

    def snapshot(self) -> RngSnapshot:
        """Capture the generators that the sampler may draw from, and whether workers run."""
        loader = self.loader
        capture = torch_state if draws_only_from_torch(loader._index_sampler) else random_state
        return RngSnapshot(capture(), generator_states(self.generators()), workers_running(loader))

    def start(self, epoch: int | None) -> Iterable[Batch]:
        """Return the batches of a new pass."""
        return batches_of(self.loader)

    def resume(self, point: ResumePoint) -> Iterator[Batch]:
        """Yield the remaining batches."""
        loader, generators = self.loader, self.generators()
        before = random_state()

        def rewind() -> None:
            self._rewind(point.start)

        def after_skip() -> None:
            if loader.num_workers == 0:
                settle()

        def settle() -> None:
            set_random_state(before)
            if loader.num_workers == point.num_workers == 0:
                set_generator_states(generators, point.generators)
            self._settle(point)

        if loader.num_workers and not isinstance(loader.dataset, SeededDataset):
            _log.info(
                f"{self.name} resumes at batch {point.batches + 1}; random numbers drawn in "
                "workers are restored only if the dataset is a stoker.data.SeededDataset"
            )
        rewind()  # running workers draw no seed; starting them draws one before the sampler draws
        before_skip = rewind if point.start.workers_running else None
        indices = SkippingSampler(
            loader._index_sampler, point.batches, before_skip=before_skip, after_skip=after_skip
        )
        batches = batches_at(loader, indices)
        if loader.num_workers:  # indices were drawn ahead for them
            settle()
        yield from batches


class ShardedStrategy(ResumeStrategy):
    """Reads this rank's shard of a map-style `DataLoader`.

    The order of an epoch follows from a seed that all ranks share, and the position is counted in
    samples of all ranks. So a pass can resume with another number of ranks or another batch size:
    the rest of the order is sharded again. A pass started by a single process keeps the order
    which that process drew.

    Args:
        loader: the loader as the user built it; it is not modified.
        name: the name of the loader in messages.
        shard: the shard to read.
        seed: the seed of the order, the same on all ranks.
    """

    kind = "sharded"

    def __init__(self, loader: Any, name: str, shard: DataShard, seed: int) -> None:
        super().__init__(loader, name)
        self._shard, self._seed = shard, seed
        self._epoch = 0
        self._single_order = False  # whether a single process drew the order of this pass
        self._make_reader()
        self._set_plan(len(sampler_of(loader)))

    def _make_reader(self) -> None:
        self._indices = ShardSampler(batched=self.loader.batch_sampler is not None)
        self.reader = with_indices(self.loader, self._indices)

    def _batches(self) -> Iterator[Any]:
        """Start to read the batches of the plan."""
        return batches_of(self.reader)

    def snapshot(self) -> RngSnapshot:
        """Capture the generators that the seed of the workers is drawn from."""
        states = generator_states(self.generators())
        return RngSnapshot(torch_state(), states, workers_running(self.reader))

    def start(self, epoch: int | None) -> Iterable[Batch]:
        """Return this rank's batches of the epoch; without a number, of the first one."""
        self._epoch, self._single_order = epoch or 0, False
        self._indices.order = self._seeded_order()
        self._set_plan(len(self._indices.order))
        return self._batches()

    def resume(self, point: ResumePoint) -> Iterator[Batch]:
        """Yield this rank's remaining batches."""
        with self._rng_of(point):
            self._rewind(point.start)
            batches = self._batches()
        yield from batches

    def state(self, batches: int | None) -> dict[str, int]:
        """Return the seed, and how much of the order all ranks have consumed."""
        if batches is None:
            return {"seed": self._seed}
        return {
            "seed": self._seed,
            "epoch": self._epoch,
            "consumed": self._indices.plan.consumed_before(batches),
            "single_order": int(self._single_order),
        }

    def load(self, state: Mapping[str, Any], point: ResumePoint | None) -> None:
        """Restore a pass that any number of ranks has saved."""
        saved = state["loader_state"] if state["loader"]["kind"] == self.kind else {}
        self._seed = saved.get("seed", self._seed)
        if point is None:
            self._set_plan(len(sampler_of(self.loader)))
            return
        if "epoch" in state:
            set_epoch(self.loader, state["epoch"])  # the sampler's order may depend on it
        self._epoch = saved.get("epoch", state.get("epoch", 0))
        self._single_order = bool(saved.get("single_order", 1))
        if self.user_state is not None:
            self.user_state.rewind(point.start.user_state)
        order = self._order_drawn_at(point.start) if self._single_order else self._seeded_order()
        by_one = point.batches * state["loader"].get("batch_size", 1)
        self._indices.order = order
        self._set_plan(len(order), min(saved.get("consumed", by_one), len(order)), point.batches)

    def padding(self, batches: int) -> int:
        """Return 1 if the last of the first ``batches`` is padding, otherwise 0."""
        return int(batches > 0 and self._indices.plan.is_padding(batches - 1))

    def global_size(self, batches: int, sizes: Sequence[int]) -> int:
        """Return the samples of all ranks in a window, as planned.

        If a batch has another size than its number of indices, assume the same ratio on the other
        ranks. Without batching, sum over all ranks.
        """
        plan, first = self._indices.plan, batches - len(sizes)
        real = range(first, batches - self.padding(batches))
        size = sum(sizes[: len(real)])
        if self.loader.batch_sampler is None:
            readers_per_shard = max(1, dist.world_size() // self._shard.world_size)
            return int(dist.all_reduce_sum(size)[0]) // readers_per_shard
        total = plan.consumed_before(batches) - plan.consumed_before(first)
        planned = sum(len(plan.indices(batch)) for batch in real)
        return total if size in (0, planned) else round(total * size / planned)

    def _set_plan(self, num_samples: int, consumed: int = 0, first_batch: int = 0) -> None:
        batches = self.loader.batch_sampler
        size, drop_last = (1, False) if batches is None else (batches.batch_size, batches.drop_last)
        plan = ShardPlan(self._shard, size, drop_last, num_samples, consumed, first_batch)
        self._indices.plan, self.length = plan, plan.num_batches

    def _seeded_order(self) -> Order:
        """Return the order that follows from the seed and the epoch.

        It is the order of `DistributedSampler` for loaders with ``shuffle`` on or off. Any other
        sampler runs with all generators seeded, which are restored afterwards.
        """
        seed = (self._seed + self._epoch) % 2**63
        sampler = sampler_of(self.loader)
        if is_plain(sampler, SequentialSampler):
            return range(len(sampler))
        if is_plain(sampler, RandomSampler) and not sampler.replacement:
            size = len(sampler.data_source)
            if sampler.num_samples == size:
                return torch.randperm(size, generator=torch.Generator().manual_seed(seed))
        generators = self.generators()
        with preserve_rng(*generators):
            seed_all(seed)
            for generator in generators:
                generator.manual_seed(seed)
            return list(sampler)

    def _order_drawn_at(self, start: RngSnapshot) -> Order:
        """Return the order that a single process drew when it started a pass at ``start``."""
        loader, generators = self.loader, self.generators()
        with preserve_rng(*generators):
            self._rewind(start)
            if loader.batch_sampler is None:
                samples = iter(loader.sampler)
            else:
                size = loader.batch_sampler.batch_size
                samples = chain.from_iterable(BatchSampler(sampler_of(loader), size, False))
            if not start.workers_running:  # the seed of the workers
                torch.empty((), dtype=torch.int64).random_(generator=loader.generator)
            return list(samples)


class ShardSampler:
    """Yields the batches of indices of one shard, for a loader to fetch.

    Attributes:
        plan: which part of the order is read.
        order: the dataset indices of an entire pass.
    """

    plan: ShardPlan

    def __init__(self, *, batched: bool) -> None:
        self.order: Order = ()
        self._batched = batched

    def __iter__(self) -> Iterator[Any]:
        plan = self.plan
        for batch in range(plan.first_batch, plan.num_batches):
            yield self.picked(plan.indices(batch))

    def picked(self, own: range) -> Any:
        """Return the dataset indices at these places of the order, as the loader expects them."""
        picked = self.order[own.start : own.stop : own.step]
        indices = picked.tolist() if isinstance(picked, Tensor) else list(picked)
        return indices if self._batched else indices[0]

    def __len__(self) -> int:
        return self.plan.num_batches


def strategy_for(loader: Any, name: str, shard: DataShard) -> ResumeStrategy:
    """Return the strategy for this loader; all ranks must call it."""
    if sharding_mode(loader, shard) is ShardingMode.SHARDED:
        seed = dist.broadcast_from_rank0(torch.initial_seed())
        return ShardedStrategy(loader, name, shard, seed)
    return _strategy_type(loader)(loader, name)


def _strategy_type(loader: Any) -> type[ResumeStrategy]:
    if _loses_state(loader):
        return ReplayStrategy
    if isinstance(loader, Stateful):
        return StatefulLoaderStrategy
    if isinstance(loader, Sequence) and type(loader).__iter__ in _ITERATE_BY_INDEX:
        return SequenceStrategy
    if is_plain_loader(loader):
        if not isinstance(loader.dataset, IterableDataset):
            return MapStyleStrategy
        if isinstance(loader.dataset, Stateful) and loader.num_workers == 0:
            return StatefulDatasetStrategy
    return ReplayStrategy


def _loses_state(loader: Any) -> bool:
    """Return whether the ``state_dict`` of a loader or its dataset is known not to be exact.

    Hugging Face datasets leave out the contents of their shuffle buffers. A `StatefulDataLoader`
    asks a sampler without ``state_dict`` for several orders when it resumes.
    """
    if not isinstance(loader, DataLoader):
        return has_shuffle_buffer(loader)
    sampler = sampler_of(loader)
    if isinstance(loader, Stateful) and not isinstance(sampler, Stateful):
        found = search([("sampler", sampler)])
        counts = any(facts_of(function).counts for function in found.functions.values())
        if counts or any(isinstance(value, RNGS) for value in found.values.values()):
            return True
    return has_shuffle_buffer(loader.dataset)
