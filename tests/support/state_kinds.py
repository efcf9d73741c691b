"""Kinds of state that a training may depend on: data, models, steps and hooks as users write them.

Each function below builds the parts of a training; `KINDS` names them all, with what is expected:
``exact`` for kinds that resume at the same bits without a warning, or a part of the warning that is
logged when the run starts.
"""

import enum
import functools
import itertools
import multiprocessing
import random
import weakref
from collections import Counter, OrderedDict, UserDict, defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from functools import lru_cache
from typing import Any

import numpy as np
import pandas
import torch
from torch import Tensor, nn
from torch.utils.data import (
    BatchSampler,
    ConcatDataset,
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    Sampler,
    Subset,
    TensorDataset,
    WeightedRandomSampler,
    default_collate,
)

from stoker import Hook, Step, hooks
from stoker.data import SeededDataset

SIZE, BATCH = 26, 4  # seven batches, the last one short
GROUPS: dict[str, dict[str, "Kind"]] = {}


@dataclass
class Kind:
    """How to build a training, and what is expected of it."""

    build: Callable[[], dict[str, Any]]
    expected: str


def kind(group: str, name: str, expected: str = "exact") -> Callable[[Any], Any]:
    def register(build: Callable[[], dict[str, Any]]) -> Callable[[], dict[str, Any]]:
        GROUPS.setdefault(group, {})[name] = Kind(build, expected)
        return build

    return register


def points(size: int = SIZE) -> Tensor:
    return torch.randn(size, 4, generator=torch.Generator().manual_seed(1))


def plain() -> TensorDataset:
    x = points()
    return TensorDataset(x, (x.sum(1) > 0).long())


def sampled(sampler: Any, dataset: Any = None, **options: Any) -> dict[str, Any]:
    return {"loader": DataLoader(dataset or plain(), BATCH, sampler=sampler, **options)}


def reading(dataset: Any, **options: Any) -> dict[str, Any]:
    return {"loader": DataLoader(dataset, BATCH, shuffle=True, **options)}


# Samplers


class Order(Sampler):
    """A sampler whose subclasses draw an order."""

    def __len__(self):
        return SIZE

    def __iter__(self):
        return iter(self.order())


class PythonOrder(Order):
    def __init__(self, seed=3):
        self._draw = random.Random(seed)

    def order(self):
        return self._draw.sample(range(SIZE), SIZE)


@kind("samplers", "shuffle=True")
def _():
    return reading(plain())


@kind("samplers", "a torch.Generator of the loader")
def _():
    return reading(plain(), generator=torch.Generator().manual_seed(4))


@kind("samplers", "RandomSampler with replacement")
def _():
    return sampled(RandomSampler(range(SIZE), replacement=True))


@kind("samplers", "WeightedRandomSampler")
def _():
    return sampled(WeightedRandomSampler(torch.arange(1.0, SIZE + 1), SIZE))


@kind("samplers", "DistributedSampler, set_epoch")
def _():
    return sampled(DistributedSampler(plain(), num_replicas=1, rank=0))


@kind("samplers", "its own random.Random")
def _():
    return sampled(PythonOrder())


@kind("samplers", "an unseeded random.Random")
def _():
    return sampled(PythonOrder(None)) | {"unseeded": True}


@kind("samplers", "its own np.random.Generator")
def _():
    class Numpy(Order):
        def __init__(self):
            self.gen = np.random.default_rng(3)

        def order(self):
            return self.gen.permutation(SIZE).tolist()

    return sampled(Numpy())


@kind("samplers", "its own np.random.RandomState")
def _():
    class Legacy(Order):
        def __init__(self):
            self.state = np.random.RandomState(3)

        def order(self):
            return self.state.permutation(SIZE).tolist()

    return sampled(Legacy())


@kind("samplers", "its own torch.Generator under another name")
def _():
    class Torch(Order):
        def __init__(self):
            self.__g = torch.Generator().manual_seed(3)

        def order(self):
            return torch.randperm(SIZE, generator=self.__g).tolist()

    return sampled(Torch())


@kind("samplers", "counts its passes")
def _():
    class Counting(Order):
        def __init__(self):
            self.passes = 0

        def order(self):
            self.passes += 1
            return random.Random(self.passes).sample(range(SIZE), SIZE)

    return sampled(Counting())


@kind("samplers", "shuffles its list in place")
def _():
    class InPlace(Order):
        def __init__(self):
            self.indices, self.draw = list(range(SIZE)), random.Random(5)

        def order(self):
            self.draw.shuffle(self.indices)
            return self.indices

    return sampled(InPlace())


@kind("samplers", "a generator that spawns one per pass")
def _():
    class Sampler(Order):
        def __init__(self):
            self.rng = np.random.default_rng(3)

        def order(self):
            return self.rng.spawn(1)[0].permutation(SIZE).tolist()

    return sampled(Sampler())


class Lazy(Order):
    """Draws each index when it is needed."""

    def __init__(self):
        self.draw = np.random.default_rng(8)

    def __iter__(self):
        for _ in range(SIZE):
            yield int(self.draw.integers(SIZE))


@kind("samplers", "draws each index from its own generator")
def _():
    return sampled(Lazy())


class LazyGlobal(Order):
    def __iter__(self):
        for _ in range(SIZE):
            yield random.randrange(SIZE)


@kind("samplers", "draws each index from the global random")
def _():
    return sampled(LazyGlobal())


@kind("samplers", "a batch sampler with its own generator")
def _():
    class Batches(BatchSampler):
        def __init__(self):
            super().__init__(range(SIZE), BATCH, False)
            self.rng = random.Random(2)

        def __iter__(self):
            batches = list(super().__iter__())
            self.rng.shuffle(batches)
            yield from batches

    return {"loader": DataLoader(plain(), batch_sampler=Batches())}


MODULE_RNG = random.Random(11)


@kind("samplers", "a generator of the module")
def _():
    class Global(Order):
        def order(self):
            return MODULE_RNG.sample(range(SIZE), SIZE)

    return sampled(Global())


@kind("samplers", "a generator in a closure")
def _():
    rng = np.random.default_rng(6)

    class Enclosed(Order):
        def order(self):
            return rng.permutation(SIZE).tolist()

    return sampled(Enclosed())


@kind("samplers", "a generator of the class")
def _():
    class OfClass(Order):
        rng = random.Random(9)

        def order(self):
            return self.rng.sample(range(SIZE), SIZE)

    return sampled(OfClass())


@kind("samplers", "__slots__ and a nested generator")
def _():
    class Settings:
        __slots__ = ("rng", "seen")

        def __init__(self):
            self.rng, self.seen = random.Random(1), 0

    class Nested(Order):
        def __init__(self):
            self.settings = {"own": Settings()}

        def order(self):
            own = self.settings["own"]
            own.seen += 1
            order = own.rng.sample(range(SIZE), SIZE)
            return order[own.seen :] + order[: own.seen]

    return sampled(Nested())


@kind("samplers", "weights that a hook adapts")
def _():
    class Adaptive(Order):
        def __init__(self):
            self.weights, self.rng = np.ones(SIZE), np.random.default_rng(2)

        def order(self):
            return self.rng.choice(SIZE, SIZE, p=self.weights / self.weights.sum()).tolist()

    sampler = Adaptive()

    class Adapt(Hook):
        def after_step(self, run):
            sampler.weights[run.step % SIZE] += float(run.loss)

    return sampled(sampler) | {"hooks": [Adapt()]}


# Datasets


class Points(Dataset):
    def __init__(self):
        self.x = points()

    def __len__(self):
        return SIZE

    def __getitem__(self, index):
        x = self.change(self.x[index], index)
        return x, int(self.x[index].sum() > 0)


class OwnRng(Points):
    def __init__(self):
        super().__init__()
        self.rng = np.random.default_rng(4)

    def change(self, x, index):
        return x + 0.1 * float(self.rng.standard_normal())


class GlobalDraws(Points):
    def change(self, x, index):
        return x + 0.1 * torch.randn(4) + 0.1 * random.random()


class Counts(Points):
    reads = 0

    def change(self, x, index):
        self.reads += 1
        return x + 0.01 * self.reads


@kind("datasets", "draws from the global generators")
def _():
    return reading(GlobalDraws())


@kind("datasets", "its own np.random.Generator")
def _():
    return reading(OwnRng())


@kind("datasets", "counts its reads")
def _():
    return reading(Counts())


@kind("datasets", "counts how often each sample is read")
def _():
    class Each(Points):
        def __init__(self):
            super().__init__()
            self.seen = defaultdict(int)

        def change(self, x, index):
            self.seen[index] += 1
            return x * self.seen[index]

    return reading(Each())


@kind("datasets", "caches random augmentation")
def _():
    class Cached(Points):
        def __init__(self):
            super().__init__()
            self._cache = {}

        def change(self, x, index):
            if index not in self._cache:
                self._cache[index] = x + torch.randn(4)
            return self._cache[index]

    return reading(Cached())


class Counted:
    """A decorator that counts."""

    def __init__(self, function):
        functools.update_wrapper(self, function)
        self.function, self.calls = function, 0

    def __call__(self, x):
        self.calls += 1
        return self.function(x) * (1 + 0.01 * self.calls)


@Counted
def doubled(x):
    return 2 * x


@kind("datasets", "a decorator that counts")
def _():
    class Decorated(Points):
        def change(self, x, index):
            return doubled(x)

    return reading(Decorated())


NOISE = random.Random(8)


@kind("datasets", "operators and a missing key with a generator of the module")
def _():
    class Missing(dict):
        def __missing__(self, key):
            return 0.1 * NOISE.random()

    class Jitter:
        def __rmul__(self, x):
            return x * (1 + 0.1 * NOISE.random())

    class Noisy(Points):
        def __init__(self):
            super().__init__()
            self.shift, self.jitter = Missing(), Jitter()

        def change(self, x, index):
            return float(x[0]) * self.jitter + x + self.shift[index]

    return reading(Noisy())


class Image:
    """Something that is not plain data."""

    def __init__(self, x):
        self.x = x


@kind("datasets", "caches random objects", "_cache (dict) changes during training")
def _():
    class Cached(Points):
        def __init__(self):
            super().__init__()
            self._cache = {}

        def change(self, x, index):
            if index not in self._cache:
                self._cache[index] = Image(x + torch.randn(4))
            return self._cache[index].x

    return reading(Cached())


@kind("datasets", "caches objects that only depend on the index")
def _():
    class Cached(Points):
        def __init__(self):
            super().__init__()
            self._cache = {}

        def change(self, x, index):
            if index not in self._cache:
                self._cache[index] = Image(x * 2)
            return self._cache[index].x

        @lru_cache  # noqa: B019
        def scaled(self, index):
            return self.x[index] * 2

    return reading(Cached())


@kind("datasets", "a generator seeded by the index")
def _():
    class PerIndex(Points):
        def change(self, x, index):
            rng = random.Random(index)
            return x + rng.random() + float(np.random.default_rng(index).random())

    return reading(PerIndex())


COUNT = 0


@kind("datasets", "counters next to objects in a dict, and behind weak references")
def _():
    class Counting(Points):
        def __init__(self):
            super().__init__()
            self.other = PythonOrder()
            self.table = {"reads": 0, "other": self.other}
            self.weak = weakref.WeakKeyDictionary({self.other: 0})

        def change(self, x, index):
            self.table["reads"] += 1
            self.weak[self.other] += 2
            return x + 0.01 * (self.table["reads"] + self.weak[self.other])

    return reading(Counting())


@kind("datasets", "a transform with a global counter and generator")
def _():
    def transform(x):
        global COUNT  # noqa: PLW0603
        COUNT += 1
        return x * (1 + 0.01 * COUNT) + MODULE_RNG.random()

    return reading(Transformed(transform))


class Transformed(Points):
    def __init__(self, transform):
        super().__init__()
        self.transform = transform

    def change(self, x, index):
        return self.transform(x)


@kind("datasets", "a transform with a counter in its closure")
def _():
    calls = 0

    def transform(x):
        nonlocal calls
        calls += 1
        return x * (1 + 0.01 * calls)

    return reading(Transformed(transform))


@kind("datasets", "Subset of ConcatDataset of one with state")
def _():
    return reading(Subset(ConcatDataset([OwnRng(), Counts()]), range(3, 3 + SIZE)))


@kind("datasets", "an itertools.count", "ids (count) changes during training and cannot be saved")
def _():
    class Ids(Points):
        def __init__(self):
            super().__init__()
            self.ids = itertools.count()

        def change(self, x, index):
            return x + 0.01 * next(self.ids)

    return reading(Ids())


@kind("datasets", "a Python generator", "noise (generator) changes during training")
def _():
    def numbers():
        rng = random.Random(0)
        while True:
            yield rng.random()

    class Noise(Points):
        def __init__(self):
            super().__init__()
            self.noise = numbers()

        def change(self, x, index):
            return x + next(self.noise)

    return reading(Noise())


@kind("datasets", "a collate function with its own generator")
def _():
    class Mixup:
        def __init__(self):
            self.rng = np.random.default_rng(0)

        def __call__(self, samples):
            x = torch.stack([x for x, _ in samples])
            x = x + float(self.rng.beta(1, 1)) * x.flip(0)
            return x, torch.tensor([y for _, y in samples])

    return reading(plain(), collate_fn=Mixup())


@kind("datasets", "a collate function that keeps batches")
def _():
    kept = deque(maxlen=3)

    def collate(samples):
        x = torch.stack([x for x, _ in samples])
        kept.append(x.mean(0))
        return x + sum(kept), torch.tensor([y for _, y in samples])

    return reading(plain(), collate_fn=collate)


# Streams and other loaders


class Stream(IterableDataset):
    def __init__(self):
        self.x, self.rng, self.passes = points(), random.Random(2), 0

    def __iter__(self):
        self.passes += 1
        for index in self.rng.sample(range(SIZE), SIZE):
            noise = self.rng.random() + random.random()
            yield self.x[index] + self.passes + 0.1 * noise, int(self.x[index].sum() > 0)


@kind("streams", "an iterable dataset with generator and counter")
def _():
    return {"loader": DataLoader(Stream(), BATCH)}


@kind("streams", "one with a state_dict that leaves out its generator")
def _():
    class Partial(Stream):
        def __init__(self):
            super().__init__()
            self.next = 0

        def __iter__(self):
            while self.next < SIZE:
                self.next += 1
                x = self.x[self.next - 1]
                yield x + self.rng.random(), int(x.sum() > 0)
            self.next = 0

        def state_dict(self):
            return {"next": self.next}

        def load_state_dict(self, state):
            self.next = state["next"]

    return {"loader": DataLoader(Partial(), BATCH)}


class Batches:
    """A loader that is nothing but an iterable."""

    def __init__(self, endless=False):
        self.data, self.rng, self.endless = plain(), np.random.default_rng(3), endless
        self.passes = 0

    def __iter__(self):
        while True:
            self.passes += 1
            order = self.rng.permutation(SIZE)
            for begin in range(0, SIZE, BATCH):
                x, y = self.data[order[begin : begin + BATCH]]
                yield x * self.passes, y
            if not self.endless:
                return


@kind("streams", "an iterable of batches with generator and counter")
def _():
    return {"loader": Batches()}


@kind("streams", "an endless iterable")
def _():
    return {"loader": Batches(endless=True), "limits": {"max_steps": 21}}


@kind("streams", "a list of batches")
def _():
    return {"loader": list(DataLoader(plain(), BATCH))}


@kind("streams", "DataPipes with a shuffle buffer")
def _():
    from torch.utils.data.datapipes.iter import IterableWrapper

    data = plain()
    pipe = IterableWrapper(list(range(SIZE))).shuffle(buffer_size=10)
    return {"loader": DataLoader(pipe.map(data.__getitem__), BATCH)}


@kind("streams", "StatefulDataLoader")
def _():
    from torchdata.stateful_dataloader import StatefulDataLoader

    return {"loader": StatefulDataLoader(plain(), BATCH, shuffle=True)}


@kind("streams", "StatefulDataLoader, sampler with its own generator")
def _():
    from torchdata.stateful_dataloader import StatefulDataLoader

    return {"loader": StatefulDataLoader(plain(), BATCH, sampler=PythonOrder())}


@kind("streams", "StatefulDataLoader, dataset with its own generator")
def _():
    from torchdata.stateful_dataloader import StatefulDataLoader

    return {"loader": StatefulDataLoader(OwnRng(), BATCH, shuffle=True)}


# Hugging Face datasets


def rows() -> Any:
    from datasets import Dataset as Rows

    x = points()
    return Rows.from_dict({"x": x.tolist(), "y": (x.sum(1) > 0).long().tolist()})


def as_pair(found: list[dict[str, Any]]) -> tuple[Tensor, Tensor]:
    return torch.tensor([one["x"] for one in found]), torch.tensor([one["y"] for one in found])


@kind("Hugging Face datasets", "rows in memory")
def _():
    return reading(rows(), collate_fn=as_pair)


@kind("Hugging Face datasets", "shuffled rows")
def _():
    return {"loader": DataLoader(rows().shuffle(seed=3), BATCH, collate_fn=as_pair)}


@kind("Hugging Face datasets", "a stream")
def _():
    stream = rows().to_iterable_dataset(num_shards=2)
    return {"loader": DataLoader(stream, BATCH, collate_fn=as_pair)}


@kind("Hugging Face datasets", "a stream with a shuffle buffer")
def _():
    stream = rows().to_iterable_dataset(num_shards=2).shuffle(seed=3, buffer_size=8)
    return {"loader": DataLoader(stream, BATCH, collate_fn=as_pair)}


@kind("Hugging Face datasets", "one in a StatefulDataLoader")
def _():
    from torchdata.stateful_dataloader import StatefulDataLoader

    stream = rows().to_iterable_dataset(num_shards=2).shuffle(seed=3, buffer_size=8)
    return {"loader": StatefulDataLoader(stream, BATCH, collate_fn=as_pair)}


# Worker processes


@kind("workers", "shuffle=True")
def _():
    return reading(plain(), num_workers=2)


@kind("workers", "persistent workers")
def _():
    return reading(plain(), num_workers=1, persistent_workers=True)


@kind("workers", "SeededDataset")
def _():
    return reading(SeededDataset(GlobalDraws(), seed=2), num_workers=2)


@kind("workers", "a sampler with its own generator")
def _():
    return sampled(PythonOrder(), num_workers=2)


@kind("workers", "a sampler that draws each index from its own generator")
def _():
    return sampled(Lazy(), num_workers=2)


@kind("workers", "a sampler that draws each index from the global random")
def _():
    return sampled(LazyGlobal(), num_workers=2)


@kind(
    "workers", "a sampler that draws each index from torch", "draws from torch's global generator"
)
def _():
    class LazyTorch(Order):
        def __iter__(self):
            for _ in range(SIZE):
                yield int(torch.randint(SIZE, ()))

    return sampled(LazyTorch(), num_workers=1)


@kind("workers", "random augmentation", "wrap the dataset in stoker.data.SeededDataset")
def _():
    return reading(GlobalDraws(), num_workers=1)


@kind("workers", "a random transform", "wrap the dataset in stoker.data.SeededDataset")
def _():
    return reading(Transformed(lambda x: x + np.random.rand()), num_workers=1)


@kind("workers", "a random collate function", "its collate_fn draws random numbers")
def _():
    def collate(samples):
        x = torch.stack([x for x, _ in samples])
        return x + torch.rand(()), torch.tensor([y for _, y in samples])

    return reading(plain(), num_workers=1, collate_fn=collate)


@kind("workers", "a collate function that counts", "Scaled.most (float) changes")
def _():
    class Scaled:
        most = 0.0

        def __call__(self, samples):
            inputs, targets = default_collate(samples)
            self.most = max(self.most, float(inputs.abs().max()))
            return inputs / self.most, targets

    return reading(plain(), collate_fn=Scaled(), num_workers=2)


@kind("workers", "a dataset with its own generator", "rng (Generator) changes while worker")
def _():
    return reading(OwnRng(), num_workers=1)


@kind("workers", "a dataset that counts", "reads (int) changes while worker processes read")
def _():
    return reading(Counts(), num_workers=1)


@kind("workers", "a dataset that opens its file late")
def _():
    class Late(Points):
        file = None

        def change(self, x, index):
            if self.file is None:
                self.file = object()
            return x

    return reading(Late(), num_workers=2)


class ByEpoch(Points):
    epoch = 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def change(self, x, index):
        return x * (1 + self.epoch)


@kind("workers", "set_epoch")
def _():
    return reading(ByEpoch(), num_workers=1)


@kind("workers", "set_epoch with persistent workers", "set_epoch does not reach persistent worker")
def _():
    return reading(ByEpoch(), num_workers=1, persistent_workers=True)


@kind("workers", "an iterable dataset with generator and counter")
def _():
    return {"loader": DataLoader(Stream(), BATCH, num_workers=1)}


# Models, criteria, steps and hooks


def trained(model: nn.Module | None = None, **more: Any) -> dict[str, Any]:
    return reading(plain()) | ({"model": model} if model is not None else {}) | more


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear, self.dropout = nn.Linear(4, 2), nn.Dropout(0.3)

    def forward(self, x):
        return self.linear(self.dropout(x))


@kind("training", "a persistent=False buffer")
def _():
    class Buffered(Net):
        def __init__(self):
            super().__init__()
            self.register_buffer("mean", torch.zeros(4), persistent=False)

        def forward(self, x):
            if self.training:
                self.mean.mul_(0.9).add_(0.1 * x.mean(0))
            return super().forward(x - self.mean)

    return trained(Buffered())


class Phase(enum.Enum):
    EARLY = 1
    LATE = 2


@kind("training", "a module with counter, phase and generator")
def _():
    class Noisy(Net):
        def __init__(self):
            super().__init__()
            self.calls, self.phase = 0, Phase.EARLY
            self.noise = torch.Generator().manual_seed(2)

        def forward(self, x):
            self.calls += 1
            if self.calls > 9:
                self.phase = Phase.LATE
            noise = torch.randn(x.shape, generator=self.noise)
            return super().forward(x + noise * (0.5 if self.phase is Phase.LATE else 0.1))

    return trained(Noisy())


@kind("training", "a forward hook with a closure")
def _():
    model, calls = Net(), [0]

    def scale(module, args, output):
        calls[0] += 1
        return output * (1 + 0.01 * calls[0])

    model.linear.register_forward_hook(scale)
    return trained(model)


@kind("training", "hooks of gradients and updates that count")
def _():
    model, calls = Net(), {"gradient": 0, "update": 0}

    def scale(gradient):
        calls["gradient"] += 1
        return gradient * (1 + 0.01 * calls["gradient"])

    def decay(optimizer, args, kwargs):
        calls["update"] += 1
        optimizer.param_groups[0]["lr"] = 0.01 / calls["update"]

    def optimizer(parameters, lr):
        made = torch.optim.Adam(parameters, lr)
        made.register_step_post_hook(decay)
        return made

    model.linear.weight.register_hook(scale)
    return trained(model) | {"optimizer": optimizer}


@kind("training", "an optimizer with slow weights and a counter")
def _():
    class Lookahead(torch.optim.SGD):
        def __init__(self, parameters, lr):
            super().__init__(parameters, lr)
            held = self.param_groups[0]["params"]
            self.slow, self._updates = {one: one.detach().clone() for one in held}, 0

        @torch.no_grad()
        def step(self, closure=None):
            loss = super().step(closure)
            self._updates += 1
            for fast, slow in self.slow.items():
                if self._updates % 3 == 0:
                    fast.copy_(slow.lerp_(fast, 0.5))
            return loss

    return trained(Net()) | {"optimizer": Lookahead}


@kind("training", "a step with a running mean and a queue")
def _():
    class Running(Step):
        mean, queue = 0.0, None

        def forward(self, engine, batch):
            output = super().forward(engine, batch)
            if self.queue is None:
                self.queue = torch.zeros(3)
            self.queue = torch.cat([self.queue[1:], output.loss.detach()[None]])
            self.mean = 0.9 * self.mean + 0.1 * float(output.loss.detach())
            output.loss = output.loss * (1 + self.mean + self.queue.mean())
            return output

    return trained(step=Running())


@kind("training", "a function with state in closure and globals")
def _():
    seen, criterion = Counter(), nn.CrossEntropyLoss()

    def step(engine, batch):
        global COUNT  # noqa: PLW0603
        COUNT += 1
        inputs, targets = batch
        seen.update(targets.tolist())
        weight = seen[1] / sum(seen.values())
        return criterion(engine(inputs), targets) * (1 + weight + 0.01 * COUNT)

    return trained(step=step)


@kind("training", "a criterion with a running mean")
def _():
    class Balanced(nn.Module):
        def __init__(self):
            super().__init__()
            self.mean = 0.5

        def forward(self, outputs, targets):
            self.mean = 0.9 * self.mean + 0.1 * float(targets.float().mean())
            return nn.functional.cross_entropy(outputs, targets) * (1 + self.mean)

    return trained(criterion=Balanced())


@kind("training", "a hook without state_dict that sets dropout")
def _():
    class Anneal(Hook):
        steps = 0

        def after_step(self, run):
            self.steps += 1
            if self.steps % 5 == 0:
                run.engine.model.dropout.p *= 0.8

    return trained(hooks=[Anneal()])


@kind("training", "a hook that unfreezes a layer")
def _():
    model = Net()
    model.linear.bias.requires_grad_(False)

    class Unfreeze(Hook):
        def after_epoch(self, run):
            if run.epoch == 1:
                model.linear.bias.requires_grad_(True)

    return trained(model, hooks=[Unfreeze()])


@kind("training", "a teacher that follows the model")
def _():
    class Teacher(Step):
        def __init__(self):
            self.teacher = Net().eval()

        def forward(self, engine, batch):
            with torch.no_grad():
                for mine, theirs in zip(
                    self.teacher.parameters(), engine.model.parameters(), strict=True
                ):
                    mine.data.mul_(0.9).add_(theirs.data, alpha=0.1)
                aim = self.teacher(batch[0])
            output = super().forward(engine, batch)
            output.loss = output.loss + (output.outputs - aim).square().mean()
            return output

    return trained(step=Teacher())


@kind("training", "an iterator that is created late", "others (_SingleProcessDataLoaderIter)")
def _():
    class Second(Step):
        def __init__(self):
            self.loader, self.others = DataLoader(plain(), BATCH, shuffle=True), None

        def forward(self, engine, batch):
            if self.others is None:
                self.others = iter(self.loader)
            inputs, targets = next(self.others, batch)
            return super().forward(engine, (inputs[: len(batch[0])], targets[: len(batch[0])]))

    return trained(step=Second())


@kind("training", "an object made from the first batch", "step.center was None and is a new")
def _():
    class Center:
        def __init__(self, inputs):
            self.mean = inputs.mean(0)

    class Centered(Step):
        center = None

        def forward(self, engine, batch):
            if self.center is None:
                self.center = Center(batch[0])
            return super().forward(engine, (batch[0] - self.center.mean, batch[1]))

    return trained(step=Centered())


@kind("training", "a hook that sets clipping and the criterion")
def _():
    class Later(Hook):
        def __init__(self):
            self.smooth = nn.CrossEntropyLoss(label_smoothing=0.3)

        def after_epoch(self, run):
            if run.epoch == 1:
                run.engine.clip_norm = 0.01
                run.engine.set_criterion(self.smooth)

    return trained(hooks=[Later()])


@kind("training", "a metric without state_dict")
def _():
    class Spread:
        def reset(self):
            self.values = []

        def update(self, outputs, targets):
            self.values.append(float(outputs.std()))

        def compute(self):
            return max(self.values) - min(self.values)

    return trained(hooks=[hooks.Metrics(Spread(), on="train")])


@kind("training", "an iterator over other data", "others (cycle) changes during training")
def _():
    class Second(Step):
        def __init__(self):
            self.others = itertools.cycle(list(DataLoader(plain(), BATCH)))

        def forward(self, engine, batch):
            inputs, targets = next(self.others)
            return super().forward(engine, (inputs[: len(batch[0])], targets[: len(batch[0])]))

    return trained(step=Second())


@kind("training", "an optimizer of the step", "pass all optimizers to the Engine")
def _():
    class Own(Step):
        def __init__(self):
            self.scale = nn.Parameter(torch.ones(()))
            self.optimizer = torch.optim.Adam([self.scale], lr=0.1)

        def forward(self, engine, batch):
            output = super().forward(engine, batch)
            (self.scale * output.loss.detach()).backward()
            self.optimizer.step()
            output.loss = output.loss * self.scale.detach()
            return output

    return trained(step=Own())


@kind("training", "a learning rate from a closure")
def _():
    calls = [0]

    def rate(step):
        calls[0] += 1
        return 1 / (1 + 0.1 * calls[0])

    return trained(lr_lambda=rate)


@kind("training", "a validation sampler with its own generator")
def _():
    class Half(PythonOrder):
        def order(self):
            return super().order()[: SIZE // 2]

        def __len__(self):
            return SIZE // 2

    return trained(val=DataLoader(plain(), BATCH, sampler=Half()))


# Values of Python's own and of other libraries


class Weighed(Points):
    """Scales its samples by a number that each subclass keeps in its own way."""

    def weight(self) -> float:
        raise NotImplementedError

    def change(self, x, index):
        return x * (1 + 0.01 * self.weight())


class SharedCounter(Weighed):
    def __init__(self):
        super().__init__()
        self.reads = multiprocessing.Value("i", 0)

    def weight(self):
        self.reads.value += 1
        return self.reads.value


@kind("library values", "a multiprocessing.Value that counts")
def _():
    return reading(SharedCounter())


@kind("library values", "one that a hook sets, read by workers")
def _():
    class Staged(Weighed):
        def __init__(self):
            super().__init__()
            self.stage = multiprocessing.Value("i", 0)

        def weight(self):
            return self.stage.value

    dataset = Staged()

    class Advance(Hook):
        def before_epoch(self, run):
            dataset.stage.value += 3

    return reading(dataset, num_workers=1) | {"hooks": [Advance()]}


@kind("library values", "bytes, a UserDict, a Decimal and an OrderedDict")
def _():
    class Ledger(Weighed):
        def __init__(self):
            super().__init__()
            self.counts, self.total, self.last = bytearray(4), Decimal(0), OrderedDict(n=0)
            self.table = UserDict(n=0)

        def weight(self):
            self.counts[0] += 1
            self.total += 1
            self.table["n"] += 1
            self.last["n"] = self.counts[0]
            return self.counts[0] + float(self.total) + self.table["n"] + self.last["n"]

    return reading(Ledger())


@kind("library values", "a bit generator without a Generator")
def _():
    class Raw(Weighed):
        def __init__(self):
            super().__init__()
            self.bits = np.random.PCG64(3)

        def weight(self):
            return float(self.bits.random_raw() % 100)

    return reading(Raw())


@kind("library values", "a gradient scaler of the step")
def _():
    class Scaled(Step):
        def __init__(self):
            self.scaler = torch.amp.GradScaler("cpu", init_scale=2.0, growth_interval=2)

        def forward(self, engine, batch):
            output = super().forward(engine, batch)
            self.scaler.scale(torch.ones(1))
            self.scaler.update(self.scaler.get_scale() * 1.01)
            output.loss = output.loss * self.scaler.get_scale()
            return output

    return trained(step=Scaled())


@kind("library values", "a parameter outside of the model")
def _():
    class Temperature(Step):
        def __init__(self):
            self.scale = nn.Parameter(torch.ones(()))

        def forward(self, engine, batch):
            output = super().forward(engine, batch)
            self.scale.data.mul_(1.01)
            output.loss = output.loss * self.scale.detach()
            return output

    return trained(step=Temperature())


@kind("library values", "a frame of pandas", "weights (DataFrame) changes during training")
def _():
    class Table(Weighed):
        def __init__(self):
            super().__init__()
            self.weights = pandas.DataFrame({"w": np.ones(SIZE)})

        def weight(self):
            self.weights.loc[0, "w"] += 0.5
            return float(self.weights.loc[0, "w"])

    return reading(Table())


@kind("library values", "a file that is read line by line", "noise (TextIOWrapper) changes during")
def _():
    class Lines(Weighed):
        def __init__(self):
            super().__init__()
            self.noise = open(__file__, encoding="utf-8")  # noqa: SIM115

        def weight(self):
            return len(self.noise.readline())

    return reading(Lines())


@kind("library values", "a cache of random results", "changes during training and cannot be saved")
def _():
    @lru_cache
    def noise(index):
        return float(torch.rand(()))

    class Cached(Points):
        def change(self, x, index):
            return x * noise(index)

    return reading(Cached())


KINDS = {f"{group}: {name}": one for group, kinds in GROUPS.items() for name, one in kinds.items()}
