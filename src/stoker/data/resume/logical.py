"""How to read a loader for the logical ranks of a process, in rounds, and how to resume it.

    LogicalStrategy    a map-style `DataLoader`    reads the samples of its logical ranks only
    DealtStrategy      anything else               reads everything, keeps every L-th batch

In a round, each logical rank has one batch; the last round of a pass may have none for some.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

import torch
from torch.utils.data import Dataset

from stoker.core import dist
from stoker.core.seed import mixed_seed, preserve_rng, seed_all
from stoker.core.tree import batch_size
from stoker.core.types import Batch
from stoker.core.user_state import UserState
from stoker.data.dataloader import components, set_shard, with_indices
from stoker.data.in_memory import batches_of, can_gather
from stoker.data.resume.position import ResumePoint
from stoker.data.resume.rng import RngSnapshot
from stoker.data.resume.strategies import (
    ResumeStrategy,
    ShardedStrategy,
    ShardSampler,
    strategy_for,
)
from stoker.data.resume.stream_strategy import StreamStrategy
from stoker.data.sharding import DataShard, ShardingMode, sharding_mode
from stoker.data.streams.stream import Stream

_END = object()
_SINGLE = DataShard()


@dataclass(frozen=True, slots=True)
class Round:
    """One batch for each logical rank.

    Args:
        batches: those of this process.
        samples: the number of samples of all logical ranks.
        is_last: whether the pass is known to have no further round.
        everything: the batches of all logical ranks, if this process has read them.
    """

    batches: list[Batch]
    samples: int
    is_last: bool
    everything: list[Batch] = field(default_factory=list)


def logical_strategy_for(loader: Any, name: str, shard: DataShard) -> ResumeStrategy:
    """Return the strategy that reads this loader in rounds; all ranks must call it."""
    if isinstance(loader, Stream):
        return DealtStrategy(loader, name, shard, StreamStrategy(loader, name, _SINGLE))
    if sharding_mode(loader, shard) is ShardingMode.SHARDED:
        return LogicalStrategy(loader, name, shard, dist.broadcast_from_rank0(torch.initial_seed()))
    distributed = [one for one in components(loader) if getattr(one, "num_replicas", 1) != 1]
    if distributed:
        raise ValueError(
            f"{name} has a {type(distributed[0]).__name__} for {distributed[0].num_replicas} "
            "processes, but logical ranks run on any number of them: leave it out, because Stoker "
            "assigns the samples to logical ranks"
        )
    return DealtStrategy(loader, name, shard, strategy_for(loader, name, _SINGLE))


class LogicalStrategy(ShardedStrategy):
    """Reads the shards of the logical ranks of this process, round by round, without padding."""

    _indices: "LogicalSampler"

    def _make_reader(self) -> None:
        loader = self.loader
        seeded = not can_gather(loader)  # gathering draws nothing
        self._indices = LogicalSampler(batched=loader.batch_sampler is not None, seeded=seeded)
        self.reader = with_indices(loader, self._indices)
        if seeded:
            self.reader.__dict__["dataset"] = _SeededBatches(loader.dataset)  # setattr is blocked

    def _batches(self) -> Iterator[Any]:
        self._indices.seed = mixed_seed(self._seed, self._epoch)
        batches = batches_of(self.reader)
        return self._rounds(batches if self.reader.num_workers else _undisturbed(batches))

    def _rounds(self, batches: Iterator[Batch]) -> Iterator[Round]:
        plan = self._indices.plan
        for number in range(plan.first_batch, plan.num_batches):
            own = list(islice(batches, len(plan.logical_batches(number))))
            samples = plan.consumed_before(number + 1) - plan.consumed_before(number)
            yield Round(own, samples, is_last=number == plan.num_batches - 1)


class LogicalSampler(ShardSampler):
    """Yields the batches of indices of the logical ranks of this process, round by round.

    Each comes with a seed, so that random numbers in the dataset and in ``collate_fn`` depend on
    the batch and not on the process that reads it.
    """

    def __init__(self, *, batched: bool, seeded: bool) -> None:
        super().__init__(batched=batched)
        self.seed = 0
        self._seeded = seeded

    def __iter__(self) -> Iterator[Any]:
        plan = self.plan
        for batch in range(plan.first_batch, plan.num_batches):
            for rank, own in plan.logical_batches(batch):
                indices = self.picked(own)
                yield (mixed_seed(self.seed, batch, rank), indices) if self._seeded else indices

    def __len__(self) -> int:
        plan = self.plan
        rounds = range(plan.first_batch, plan.num_batches)
        return sum(len(plan.logical_batches(batch)) for batch in rounds)


class _SeededBatches(Dataset[Any]):
    """Seeds all generators before each batch is read."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def __len__(self) -> int:
        return len(self.dataset)

    def __getattr__(self, name: str) -> Any:
        if name == "dataset" or name.startswith("__"):  # not set yet, or for copy and pickle
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(self.dataset, name)

    def __getitem__(self, seed_and_index: tuple[int, Any]) -> Any:
        seed, index = seed_and_index
        seed_all(seed)
        return self.dataset[index]

    def __getitems__(self, seed_and_indices: tuple[int, list[Any]]) -> Any:
        seed, indices = seed_and_indices
        seed_all(seed)
        if hasattr(self.dataset, "__getitems__"):
            return self.dataset.__getitems__(indices)
        return [self.dataset[index] for index in indices]


def _undisturbed(batches: Iterable[Batch]) -> Iterator[Batch]:
    """Yield the batches; reading them leaves the generators of the process as they are."""
    source = iter(batches)
    while True:
        with preserve_rng():
            batch = next(source, _END)
        if batch is _END:
            return
        yield batch


class DealtStrategy(ResumeStrategy):
    """Reads all batches of a loader on every process, and deals them to the logical ranks.

    Batch i belongs to logical rank i modulo their number. Every process draws the same random
    numbers while it reads, since all read the same.
    """

    def __init__(self, loader: Any, name: str, shard: DataShard, inner: ResumeStrategy) -> None:
        super().__init__(loader, name)
        self._total = shard.world_size
        self._ranks = range(shard.rank, shard.rank + (shard.logical_ranks or 0))
        self._inner = inner
        self.kind, self.reader, self.length = inner.kind, inner.reader, inner.length
        if self.length is not None:
            self._batches = self.length
            self.length = -(-self.length // self._total)

    def reshard(self, shard: DataShard) -> bool:
        """Deal the batches to other logical ranks from now on."""
        self._ranks = range(shard.rank, shard.rank + (shard.logical_ranks or 0))
        return True

    def dealt(self, one: Round) -> Round:
        """Return a round that was read before, for the logical ranks that this process has now."""
        own = [batch for rank, batch in enumerate(one.everything) if rank in self._ranks]
        return replace(one, batches=own)

    @property
    def user_state(self) -> UserState | None:
        """The state of the loader that has no ``state_dict``; None if it is not tracked."""
        return self._inner.user_state

    @user_state.setter
    def user_state(self, state: UserState | None) -> None:
        self._inner.user_state = state

    def snapshot(self) -> RngSnapshot:
        """Capture what is needed to resume a pass that starts now."""
        return self._inner.snapshot()

    def start(self, epoch: int | None) -> Iterable[Any]:
        """Return the rounds of a new pass."""
        set_shard(self.loader, 0, 1)
        return self._dealt(iter(self._inner.start(epoch)))

    def resume(self, point: ResumePoint) -> Iterator[Any]:
        """Yield the remaining rounds."""
        set_shard(self.loader, 0, 1)
        return self._dealt(self._inner.resume(self._in_batches(point)))

    def state(self, batches: int | None) -> Any:
        """Return the position that the loader itself keeps; None if it keeps none."""
        return self._inner.state(None if batches is None else self._count(batches))

    def load(self, state: Mapping[str, Any], point: ResumePoint | None) -> None:
        """Restore the state of a feeder; ``point`` is its position within a pass."""
        self._inner.load(state, None if point is None else self._in_batches(point))

    def _in_batches(self, point: ResumePoint) -> ResumePoint:
        return replace(point, batches=self._count(point.batches))

    def _count(self, rounds: int) -> int:
        """Return the number of batches in so many rounds."""
        count = rounds * self._total
        return count if self.length is None else min(count, self._batches)

    def _dealt(self, batches: Iterator[Batch]) -> Iterator[Round]:
        while True:
            taken = list(islice(batches, self._total))
            if taken:
                samples, is_last = sum(map(batch_size, taken)), len(taken) < self._total
                yield self.dealt(Round([], samples, is_last, taken))
            if len(taken) < self._total:
                return
