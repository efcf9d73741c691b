"""Functions that the processes of `pool` run in `data/test_sharding_processes.py`."""

import copy

import torch
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset, TensorDataset

from stoker import data as stoker_data
from stoker.core import dist
from stoker.core.seed import random_state, seed_all, set_random_state
from stoker.core.tree import batch_size
from stoker.data import BatchFeeder, DataShard
from support.loaders import drawn


def own_shard() -> DataShard:
    return DataShard(dist.rank(), dist.world_size())


def batches_of(rank: int, count: int) -> list[torch.Tensor]:
    """Return batches of 3 and a last one of 1, whose values encode rank and batch."""
    sizes = [3] * (count - 1) + [1]
    return [torch.full((size,), 100 * rank + n) for n, size in enumerate(sizes)]


def collect(feeder: BatchFeeder) -> list[tuple]:
    """Return each window of a pass: its batches, padding and global size, and `exhausted`."""
    found = []
    for window in feeder:
        size = feeder.global_size([batch_size(batch) for batch in window])
        numbers = [int(batch[0]) for batch in window]
        found.append((numbers, feeder.padding, size, feeder.exhausted))
    assert feeder.position.ended
    return found


def uneven(counts, options):
    own = batches_of(dist.rank(), counts[dist.rank()])
    feeder = BatchFeeder(own, shard=own_shard(), **options)
    return feeder.steps, [collect(feeder) for _ in range(2)]


class Unsharded(IterableDataset):
    """Numbers, all of them on every rank."""

    shard = (0, 1)

    def __init__(self, size):
        self.size = size

    def __iter__(self):
        rank, world_size = self.shard
        yield from range(rank, self.size, world_size)


class Stream(Unsharded):
    """Numbers, of which each rank yields its shard."""

    def set_shard(self, rank, world_size):
        self.shard = (rank, world_size)


def streams():
    feeders = [
        BatchFeeder(DataLoader(Stream(7), batch_size=2), shard=own_shard()),
        BatchFeeder(DataLoader(Unsharded(3)), shard=own_shard()),
    ]
    return [collect(feeder) for feeder in feeders]


def empty_on_one():
    try:
        list(BatchFeeder(iter([torch.zeros(1)] * dist.rank()), shard=own_shard()))
    except ValueError as error:
        return str(error)
    return None


def empty_by_length_on_one():
    try:
        BatchFeeder([torch.zeros(1)] * dist.rank(), shard=own_shard())
    except ValueError as error:
        return str(error)
    return None


def resumed(counts):
    """Check that every position of a pass over uneven data, padding too, is resumed exactly."""

    def make():
        return BatchFeeder(batches_of(dist.rank(), counts[dist.rank()]), 2, shard=own_shard())

    def steps(feeder, saves):
        found = []
        for window in feeder:
            found.append(([b.tolist() for b in window], feeder.padding, feeder.exhausted, drawn()))
            saves.append((copy.deepcopy(feeder.state_dict()), random_state()))
        return found

    seed_all(dist.rank())
    saves = []
    expected = steps(make(), saves)
    for at, (state, random) in enumerate(saves):
        feeder = make()
        feeder.load_state_dict(state)
        set_random_state(random)
        assert steps(feeder, []) == expected[at + 1 :], at
    return len(expected)


def without_communication():
    """Read on rank 0 while the other ranks do nothing: no collective is needed."""
    torch.manual_seed(dist.rank())
    data = torch.arange(10)
    sampler = DistributedSampler(data, shuffle=False)
    feeders = [
        BatchFeeder(DataLoader(data, batch_size=2, shuffle=True), shard=own_shard()),
        BatchFeeder(DataLoader(data, batch_size=2, sampler=sampler), shard=own_shard()),
    ]
    seen = [collect(feeder) for feeder in feeders] if dist.rank() == 0 else None
    order = [batch.tolist() for window in feeders[0] for batch in window]
    return seen, order


def two_ranks_per_shard():
    mine = DataShard(dist.rank() // 2, 2)
    lists = BatchFeeder(batches_of(mine.rank, 1 + mine.rank), shard=mine)
    single = BatchFeeder(DataLoader(torch.zeros(3, 5), batch_size=None), shard=mine)
    return [
        [(padding, size) for _, padding, size, _ in collect(feeder)] for feeder in (lists, single)
    ]


def gathered(by_sample):
    """Return the windows of two epochs over in-memory data, and the draws after them."""
    seed_all(1)
    data = TensorDataset(torch.rand(11, 2), torch.arange(11))
    loader = DataLoader(data, batch_size=2, shuffle=True)
    feeder = BatchFeeder(stoker_data.by_sample(loader) if by_sample else loader, shard=own_shard())
    found = []
    for feeder.epoch in range(2):
        found += [[column.tolist() for column in batch] for window in feeder for batch in window]
    return found, drawn()
