"""The order of a pass that processes share, and which of it falls to each of them."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.utils.data import BatchSampler, RandomSampler, SequentialSampler

from stoker.core.seed import seed_all, undisturbed
from stoker.data.dataloader import generators_of
from stoker.data.resume.rng import RngSnapshot, set_state, set_states
from stoker.data.resume.skipping_sampler import is_plain
from stoker.data.sharding.shard import DataShard, sampler_of

Order: TypeAlias = Sequence[Any] | Tensor
"""The indices of a whole pass."""


@dataclass(frozen=True, slots=True)
class ShardPlan:
    """How the samples of a pass fall to its parts: one by one in turn, a batch of each at a time.

        order     0 1 2 3 4 5 | 6 7 8 9 10 11 | 12
        part 0    0   2   4   | 6   8   10    | 12
        part 1      1   3   5 |   7   9    11 | (12)

    A part for which nothing is left in the last batch takes the first of it and is idle: it keeps
    the others company, so that all have as many batches.

    Args:
        part: the part that is read here.
        batch_size: samples per batch and part.
        drop_last: whether a last batch is left out where it is not full on every part.
        samples: how many the pass has.
        consumed: how many of them came before this cut was made,
        position: in so many batches.
    """

    part: DataShard
    batch_size: int
    drop_last: bool
    samples: int
    consumed: int = 0
    position: int = 0

    @property
    def batches(self) -> int:
        """The batches of the pass, with those before this cut."""
        size, rest = self.batch_size * self.part.count, self.samples - self.consumed
        return self.position + (rest // size if self.drop_last else -(-rest // size))

    def before(self, position: int) -> int:
        """The samples, of all parts, that come before the batch at ``position``."""
        size = self.batch_size * self.part.count
        return min(self.samples, self.consumed + (position - self.position) * size)

    def own(self, position: int) -> range:
        """The places in the order that make the batch at ``position``."""
        begin, end = self.before(position), self.before(position + 1)
        index = 0 if self.idle(position) else self.part.index
        return range(begin + index, end, self.part.count)

    def idle(self, position: int) -> bool:
        """Whether nothing is left for this part in the batch at ``position``."""
        return self.before(position) + self.part.index >= self.before(position + 1)


def order_of(loader: Any, seed: int) -> Order:
    """The order that ``seed`` gives; all generators are left as they were.

    It is that of `DistributedSampler` where a loader shuffles or does not. Any other sampler
    draws from generators, global ones and its own, that begin with the seed.
    """
    sampler = sampler_of(loader)
    if is_plain(sampler, SequentialSampler):
        return range(len(sampler))
    if is_plain(sampler, RandomSampler) and not sampler.replacement:
        size = len(sampler.data_source)
        if sampler.num_samples == size:
            return torch.randperm(size, generator=torch.Generator().manual_seed(seed))
    generators = generators_of(loader)
    with undisturbed(*generators):
        seed_all(seed)
        for generator in generators:
            generator.manual_seed(seed)
        return list(sampler)


def order_drawn(loader: Any, mark: RngSnapshot) -> Order:
    """The order that one process drew when it began a pass there."""
    generators = generators_of(loader)
    with undisturbed(*generators):
        set_state(mark.shared)
        set_states(generators, mark.own)
        if loader.batch_sampler is None:
            samples = iter(loader.sampler)
        else:
            batch_sampler = loader.batch_sampler
            batches = BatchSampler(batch_sampler.sampler, batch_sampler.batch_size, False)
            samples = chain.from_iterable(batches)
        if not mark.warm:  # the seed of the workers
            torch.empty((), dtype=torch.int64).random_(generator=loader.generator)
        return list(samples)
