"""Random data, loaders of every kind, and a training loop that can be resumed anywhere."""

import copy
import random
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    DistributedSampler,
    RandomSampler,
    Sampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from stoker.core.seed import preserve_rng, random_state, seed_all, set_random_state
from stoker.data import BatchFeeder

SIZE = 20


class Items(Dataset):
    """Numbers with noise from three generators; records the indices read in this process."""

    def __init__(self, size: int = SIZE) -> None:
        self.size = size
        self.read: list[int] = []

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> Tensor:
        self.read.append(int(index))
        noise = [torch.rand(()).item(), random.gauss(0, 1), float(np.random.randn())]
        return torch.tensor([float(index), *noise], dtype=torch.float64)


class Own(RandomSampler):
    """A subclass with a custom order, drawn from Python and NumPy."""

    def __iter__(self):
        order = list(range(len(self.data_source)))
        random.shuffle(order)
        order += np.random.permutation(len(self.data_source)).tolist()
        yield from order[: len(self)]


class Eager(Sampler):
    """Draws its order when an iterator is requested."""

    def __iter__(self):
        return iter(torch.randperm(SIZE).tolist())

    def __len__(self) -> int:
        return SIZE


class Memoryless(Sampler):
    """Draws every index from the global generator when it is requested."""

    def __iter__(self):
        for _ in range(SIZE):
            yield int(torch.randint(SIZE, ()))

    def __len__(self) -> int:
        return SIZE


class Buckets(Sampler):
    """Yields batches of uneven sizes."""

    def __init__(self, generator: torch.Generator | None = None) -> None:
        self.generator = generator

    def __iter__(self):
        order = torch.randperm(SIZE, generator=self.generator).tolist()
        for begin, end in ((0, 2), (2, 7), (7, 8), (8, 14), (14, 18), (18, 20)):
            yield order[begin:end]

    def __len__(self) -> int:
        return 6


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(5)


WEIGHTS = [1.0 + i % 3 for i in range(SIZE)]
SUBSET = [*range(0, SIZE, 2), 1, 3, 5]

SAMPLERS: dict[str, Callable[[Dataset, Any], Any]] = {
    "sequential": lambda data, g: SequentialSampler(data),
    "random": lambda data, g: RandomSampler(data, generator=g),
    "random, more than all": lambda data, g: RandomSampler(data, num_samples=47, generator=g),
    "random, fewer": lambda data, g: RandomSampler(data, num_samples=11, generator=g),
    "replacement": lambda data, g: RandomSampler(
        data, replacement=True, num_samples=70, generator=g
    ),
    "weighted": lambda data, g: WeightedRandomSampler(WEIGHTS, 26, generator=g),
    "subset": lambda data, g: SubsetRandomSampler(SUBSET, generator=g),
    "distributed": lambda data, g: DistributedSampler(data, num_replicas=2, rank=1, seed=3),
    "subclass": lambda data, g: Own(data),
    "eager": lambda data, g: Eager(),
    "memoryless": lambda data, g: Memoryless(),
    "list": lambda data, g: list(range(SIZE))[::-1],
}
BATCHING = ("batches", "drop_last", "no batches", "batch_sampler", "buckets")


def loader_of(
    sampler: str, batching: str, owner: str, dataset: Dataset | None = None, **options: Any
) -> DataLoader:
    """Build a loader as a script does each time it starts."""
    data = Items() if dataset is None else dataset
    g = generator()
    if owner == "loader":
        options["generator"] = g
    inner = SAMPLERS[sampler](data, g if owner != "none" else None)
    if batching == "batch_sampler":
        return DataLoader(data, batch_sampler=BatchSampler(inner, 3, False), **options)
    if batching == "buckets":
        return DataLoader(data, batch_sampler=Buckets(g if owner != "none" else None), **options)
    if batching == "no batches":
        return DataLoader(data, batch_size=None, sampler=inner, **options)
    return DataLoader(
        data, batch_size=3, sampler=inner, drop_last=batching == "drop_last", **options
    )


class Saved(NamedTuple):
    step: int
    epoch: int
    feeder: dict[str, Any]
    random: dict[str, Any]


def drawn() -> tuple[float, ...]:
    """Draw random numbers as training does, for example for dropout."""
    return torch.rand(()).item(), random.random(), float(np.random.randn())


def train(
    feeder: BatchFeeder,
    *,
    epochs: int = 3,
    begin: int = 0,
    saves: list[Saved] | None = None,
    every: int = 1,
    after_step: Callable[[], None] = lambda: None,
) -> list[Any]:
    """Return the windows and the draws of every step, and the generators at the end."""
    steps: list[Any] = []

    def save(epoch: int) -> None:
        if saves is not None:
            with preserve_rng():
                state = copy.deepcopy(feeder.state_dict())
            saves.append(Saved(len(steps), epoch, state, random_state()))

    for epoch in range(begin, epochs):
        feeder.epoch = epoch
        for window in feeder:
            steps.append(([batch.tolist() for batch in window], feeder.position.batches, drawn()))
            after_step()
            if len(steps) % every == 0 or feeder.exhausted:
                save(epoch)
        assert feeder.exhausted
        save(epoch + 1)
    own = [g.get_state().tolist() for g in feeder.generators()]
    return [*steps, (drawn(), own)]


def assert_exact(
    make: Callable[[], BatchFeeder], *, epochs: int = 3, **options: Any
) -> list[Saved]:
    """Assert that a run resumed from any save yields the bits of the uninterrupted run."""
    saves: list[Saved] = []
    seed_all(1)
    expected = train(make(), saves=saves, epochs=epochs, **options)
    assert len(saves) > epochs
    for save in saves:
        seed_all(99)
        feeder = make()
        feeder.load_state_dict(copy.deepcopy(save.feeder))
        assert plain(feeder.state_dict()) == plain(save.feeder)
        set_random_state(save.random)
        assert train(feeder, begin=save.epoch, epochs=epochs) == expected[save.step :], save[:2]
    return saves


def plain(tree: Any) -> Any:
    """Convert tensors in a tree to lists; fail on anything else but ints and strings."""
    if isinstance(tree, dict):
        return {name: plain(value) for name, value in tree.items()}
    if isinstance(tree, list):
        return [plain(item) for item in tree]
    if isinstance(tree, Tensor):
        return tree.tolist()
    assert type(tree) in (int, str), tree
    return tree
