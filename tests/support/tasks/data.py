"""What the processes of `pool` do in `data/test_share_processes.py`."""

import copy

import torch
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset, TensorDataset

from stoker import data as stoker_data
from stoker.core import dist
from stoker.core.seed import random_state, seed_all, set_random_state
from stoker.core.tree import batch_size
from stoker.data import BatchFeeder, DataShard
from support.loaders import drawn


def part() -> DataShard:
    return DataShard(dist.rank(), dist.world_size())


def batches_of(rank: int, count: int) -> list[torch.Tensor]:
    """Batches of three and, as the last, of one, whose numbers tell where they come from."""
    sizes = [3] * (count - 1) + [1]
    return [torch.full((size,), 100 * rank + n) for n, size in enumerate(sizes)]


def look(feeder: BatchFeeder) -> list[tuple]:
    """Each window of a pass: its batches, how many are idle, and its samples over all."""
    found = []
    for window in feeder:
        whole = feeder.whole([batch_size(batch) for batch in window])
        numbers = [int(batch[0]) for batch in window]
        found.append((numbers, feeder.idle, whole, feeder.exhausted))
    assert feeder.ended
    return found


def uneven(counts, options):
    own = batches_of(dist.rank(), counts[dist.rank()])
    feeder = BatchFeeder(own, part=part(), **options)
    return feeder.steps, [look(feeder) for _ in range(2)]


class Mute(IterableDataset):
    """Numbers, all of them for everybody."""

    part = (0, 1)

    def __init__(self, size):
        self.size = size

    def __iter__(self):
        index, count = self.part
        yield from range(index, self.size, count)


class Stream(Mute):
    """Numbers, of which it gives the part it was told."""

    def set_part(self, index, count):
        self.part = (index, count)


def streams():
    feeders = [
        BatchFeeder(DataLoader(Stream(7), batch_size=2), part=part()),
        BatchFeeder(DataLoader(Mute(3)), part=part()),
    ]
    return [look(feeder) for feeder in feeders]


def empty_on_one():
    try:
        list(BatchFeeder(iter([torch.zeros(1)] * dist.rank()), part=part()))
    except ValueError as error:
        return str(error)
    return None


def empty_by_length_on_one():
    try:
        BatchFeeder([torch.zeros(1)] * dist.rank(), part=part())
    except ValueError as error:
        return str(error)
    return None


def continued(counts):
    """Whether every place of a pass over uneven data, idle ones too, is continued exactly."""

    def make():
        return BatchFeeder(batches_of(dist.rank(), counts[dist.rank()]), 2, part=part())

    def steps(feeder, saves):
        found = []
        for window in feeder:
            found.append(([b.tolist() for b in window], feeder.idle, feeder.exhausted, drawn()))
            saves.append((copy.deepcopy(feeder.state_dict()), random_state()))
        return found

    seed_all(dist.rank())
    saves = []
    whole = steps(make(), saves)
    for at, (state, random) in enumerate(saves):
        feeder = make()
        feeder.load_state_dict(state)
        set_random_state(random)
        assert steps(feeder, []) == whole[at + 1 :], at
    return len(whole)


def without_a_word():
    """Rank 0 reads while the others do nothing: nobody is asked anything."""
    torch.manual_seed(dist.rank())
    data = torch.arange(10)
    sampler = DistributedSampler(data, shuffle=False)
    feeders = [
        BatchFeeder(DataLoader(data, batch_size=2, shuffle=True), part=part()),
        BatchFeeder(DataLoader(data, batch_size=2, sampler=sampler), part=part()),
    ]
    seen = [look(feeder) for feeder in feeders] if dist.rank() == 0 else None
    order = [batch.tolist() for window in feeders[0] for batch in window]
    return seen, order


def two_read_each_part():
    mine = DataShard(dist.rank() // 2, 2)
    lists = BatchFeeder(batches_of(mine.index, 1 + mine.index), part=mine)
    single = BatchFeeder(DataLoader(torch.zeros(3, 5), batch_size=None), part=mine)
    return [[(idle, whole) for _, idle, whole, _ in look(feeder)] for feeder in (lists, single)]


def gathered(by_sample):
    """The windows of two epochs over data in memory, and the draws after them."""
    seed_all(1)
    data = TensorDataset(torch.rand(11, 2), torch.arange(11))
    loader = DataLoader(data, batch_size=2, shuffle=True)
    feeder = BatchFeeder(stoker_data.by_sample(loader) if by_sample else loader, part=part())
    found = []
    for feeder.epoch in range(2):
        found += [[column.tolist() for column in batch] for window in feeder for batch in window]
    return found, drawn()
