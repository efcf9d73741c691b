"""The random numbers of a sample depend on seed, epoch and index only."""

import copy
import pickle
import random
from itertools import islice

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader, IterableDataset, Subset

from stoker.core.seed import random_state, seed_all, set_random_state
from stoker.data import SeededDataset
from support.loaders import SIZE, Items, drawn


def rows(loader):
    return {int(row[0]): row.tolist() for batch in loader for row in batch}


def same_state(first, second) -> bool:
    return (
        first["python"] == second["python"]
        and torch.equal(first["torch"], second["torch"])
        and all(np.array_equal(a, b) for a, b in zip(first["numpy"], second["numpy"], strict=True))
    )


@pytest.mark.slow
@given(st.integers(0, 2**63), st.integers(0, 10**6), st.permutations(range(5)))
def test_order_and_neighbours_do_not_matter(seed, epoch, order):
    data = SeededDataset(Items(), seed)
    data.set_epoch(epoch)
    alone = {index: data[index].tolist() for index in range(5)}
    drawn()
    together = {i: item.tolist() for i, item in zip(order, data.__getitems__(order), strict=True)}
    assert together == alone
    assert data[np.int64(3)].tolist() == data[torch.tensor(3)].tolist() == alone[3]


def test_seed_epoch_and_index_all_matter():
    def noise(seed, epoch, index):
        data = SeededDataset(Items(), seed)
        data.set_epoch(epoch)
        return tuple(data[index].tolist()[1:])

    keys = [(s, e, i) for s in range(-2, 3) for e in range(4) for i in range(SIZE)]
    noises = [noise(*key) for key in keys]
    assert len(set(noises)) == len(keys)
    kinds = list(zip(*noises, strict=True))
    assert all(len(set(kind)) == len(keys) for kind in kinds)


def test_torch_and_numpy_do_not_draw_the_same_numbers():
    class Both:
        def __getitem__(self, index):
            return torch.rand((), dtype=torch.float64).item(), float(np.random.rand())

    data = SeededDataset(Both())
    assert all(data[index][0] != data[index][1] for index in range(50))


@pytest.mark.parametrize("cached", [False, True])
def test_the_generators_are_restored(cached):
    seed_all(3)
    if cached:  # NumPy and Python cache every second normal sample
        np.random.randn()
        random.gauss(0, 1)
    before = random_state()
    data = SeededDataset(Items())
    data[1]
    data.__getitems__([1, 2])
    assert same_state(random_state(), before)
    following = [drawn() for _ in range(3)]
    set_random_state(before)
    assert [drawn() for _ in range(3)] == following


def test_the_generators_are_restored_after_a_sample_that_fails():
    class Failing:
        def __getitem__(self, index):
            random.random()
            raise KeyError(index)

    before = random_state()
    with pytest.raises(KeyError):
        SeededDataset(Failing())[0]
    assert same_state(random_state(), before)


def test_a_sample_may_read_other_samples_of_its_dataset():
    class Mixing:
        seeded: SeededDataset

        def __getitem__(self, index):
            if index < 2:
                return float(np.random.rand()), random.random(), torch.rand(()).item()
            first = np.random.rand()
            other = self.seeded[index - 2]
            return first, other, np.random.rand(), random.random()

    class Alone:
        def __getitem__(self, index):
            return np.random.rand(), np.random.rand(), random.random()

    data = Mixing()
    data.seeded = SeededDataset(data)
    first, other, second, third = data.seeded[2]
    assert other == data.seeded[0]
    assert (first, second, third) == SeededDataset(Alone())[2]


@pytest.mark.process
def test_workers_read_the_same_samples_also_if_persistent():
    data = SeededDataset(Items(), seed=2)
    plain = DataLoader(data, 3, shuffle=True)
    working = DataLoader(
        data,
        4,
        shuffle=True,
        num_workers=2,
        persistent_workers=True,
        multiprocessing_context="fork",
    )
    for epoch in range(3):
        data.set_epoch(epoch)
        list(islice(working, 2))
        assert rows(working) == rows(plain)


def test_an_index_may_be_a_string():
    class Named(dict):
        def __getitem__(self, name):
            return random.random()

    data = SeededDataset(Named(), 1)
    assert data["cat"] == data["cat"] != data["dog"]


def test_it_forwards_attributes_of_the_dataset():
    inner = Items()
    inner.classes = ["a", "b"]
    data = SeededDataset(inner)
    assert len(data) == SIZE
    assert data.classes == ["a", "b"]
    with pytest.raises(AttributeError, match="nothing"):
        data.nothing
    for twin in (copy.deepcopy(data), pickle.loads(pickle.dumps(data))):
        assert twin[3].tolist() == data[3].tolist()
    assert Subset(data, [4])[0].tolist() == data[4].tolist()


def test_the_epoch_is_forwarded():
    class Knowing(Items):
        epoch = 0

        def set_epoch(self, epoch):
            self.epoch = epoch

    inner = Knowing()
    SeededDataset(inner).set_epoch(4)
    assert inner.epoch == 4


@pytest.mark.parametrize("wrong", [3, iter([1])])
def test_a_dataset_without_getitem_is_rejected(wrong):
    with pytest.raises(TypeError, match=f"got a {type(wrong).__name__}, expected a map-style"):
        SeededDataset(wrong)


def test_a_stream_and_an_invalid_seed_are_rejected():
    class Stream(IterableDataset):
        def __iter__(self):
            return iter(())

    with pytest.raises(TypeError, match="SeededDataset got a Stream, expected a map-style dataset"):
        SeededDataset(Stream())
    with pytest.raises(TypeError, match="seed must be an integer, got 1.5"):
        SeededDataset(Items(), 1.5)
