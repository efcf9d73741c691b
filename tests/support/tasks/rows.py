"""What processes do in the tests of single behaviours; each returns plain values or tensors."""

from collections import Counter
from contextlib import nullcontext
from itertools import zip_longest
from math import prod
from typing import Any

import torch
import torch.distributed as c10d
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from stoker import Engine, Layout, Output, Trainer, hooks, seed_all
from support.tasks.layouts import data, net
from support.toys import samples

SEED = 11


def rows(count: int = 48, dtype: torch.dtype = torch.float32) -> TensorDataset:
    x, y = samples(count)
    return TensorDataset(x.to(dtype), y)


# The loops that people write


def by_hand(kind: str, accumulate: int, epochs: int = 2) -> dict[str, torch.Tensor]:
    """The weights that a loop of torch's own parts ends with."""
    data, model, criterion = rows(), net(torch.float32), nn.CrossEntropyLoss()
    wrapped = DistributedDataParallel(model) if kind == "replicate" else _in_shards(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    sampler = DistributedSampler(data, seed=SEED)
    loader = DataLoader(data, batch_size=3, sampler=sampler)
    seed_all(SEED + c10d.get_rank())
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        for index, (x, y) in enumerate(loader):
            is_last = index % accumulate == accumulate - 1
            if kind == "shard":
                wrapped.set_requires_gradient_sync(is_last)
                (criterion(wrapped(x), y) / accumulate).backward()
            elif is_last:
                (criterion(wrapped(x), y) / accumulate).backward()
            else:
                with wrapped.no_sync():
                    (criterion(wrapped(x), y) / accumulate).backward()
            if is_last:
                nn.utils.clip_grad_norm_(model.parameters(), 0.5)
                optimizer.step()
                optimizer.zero_grad()
    return {name: _full(weight) for name, weight in model.state_dict().items()}


def _in_shards(model: Any) -> Any:
    for block in model[1]:
        fully_shard(block)
    return fully_shard(model)


def _full(weight: Any) -> torch.Tensor:
    return weight.full_tensor() if hasattr(weight, "full_tensor") else weight.detach().clone()


def by_trainer(kind: str, accumulate: int) -> dict[str, torch.Tensor]:
    model = net(torch.float32)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    engine = Engine(
        model, optimizer, nn.CrossEntropyLoss(), clip_norm=0.5, layout=Layout(**{kind: 2})
    )
    torch.manual_seed(SEED)  # the order of samples follows from it
    Trainer(engine, [hooks.Loss()], accumulate=accumulate, seed=SEED).fit(
        DataLoader(rows(), batch_size=3, shuffle=True), epochs=2
    )
    return engine.weights()


def both_ways(kind: str, accumulate: int) -> Any:
    plain = by_hand(kind, accumulate)
    return plain, by_trainer(kind, accumulate), by_trainer(kind, accumulate)


# What is exchanged


def counted(layout: Layout, own_loop: bool) -> Any:
    """The exchanges of three updates out of four batches each: kind and numbers, how often."""
    engine = Engine(model := net(), torch.optim.SGD(model.parameters(), 0.1), nn.CrossEntropyLoss(),
                    layout=layout)  # fmt: skip
    batches = [part_of(engine, batch) for batch in data(96, 8)]
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as seen:
        if own_loop:
            accumulated(engine, batches, 4)
        else:
            Trainer(engine, [], accumulate=4).fit(batches, epochs=1)
    names = [(event.name, event.input_shapes) for event in seen.events()]
    found = Counter(
        (name, prod(shapes[at]))
        for name, shapes in names
        if (at := EXCHANGES.get(name)) is not None
    )
    return dict(found), engine.weights()


EXCHANGES = {"gloo:all_reduce": 0, "c10d::_reduce_scatter_base_": 1}
"""By the profiler's name, which of its shapes is that of what is shared."""


def part_of(engine: Engine, batch: Any) -> Any:
    return tuple(tensor[engine.data_shard.rank :: engine.data_shard.world_size] for tensor in batch)


def accumulated(engine: Engine, batches: list[Any], count: int) -> None:
    """A loop of one's own that shares gradients once per update."""
    for index, (x, y) in enumerate(batches):
        is_last = index % count == count - 1
        if index % count == 0:
            engine.zero_grad()
        with nullcontext() if is_last else engine.no_sync():
            engine.backward(engine.criterion(engine(x), y) / count)
        if is_last:
            engine.step()


# Uneven data

SIZES = [[3, 5, 2], [4, 1, 2, 6, 3]]
"""The batches of each process."""


def uneven_data() -> list[list[Any]]:
    x, y = samples(sum(map(sum, SIZES)))
    left = iter(zip(x.double(), y, strict=True))
    return [[_stacked([next(left) for _ in range(size)]) for size in row] for row in SIZES]


def _stacked(rows: list[Any]) -> Any:
    return tuple(torch.stack(column) for column in zip(*rows, strict=True))


def merged(accumulate: int) -> list[Any]:
    """The same samples as one process has them: each step's in one batch."""
    windows = [
        [row[at : at + accumulate] for at in range(0, len(row), accumulate)]
        for row in uneven_data()
    ]
    steps = [[*first, *second] for first, second in zip_longest(*windows, fillvalue=[])]
    return [tuple(map(torch.cat, zip(*step, strict=True))) for step in steps]


def by_words(engine: Engine, batch: Any) -> Output:
    """A mean over some of the samples, as over tokens that count."""
    x, y = batch
    counts = y > 0
    losses = nn.functional.cross_entropy(engine(x), y, reduction="none")
    weight = int(counts.sum())
    return Output((losses * counts).sum() / max(weight, 1), weight=weight)


def ignoring(engine: Engine, batch: Any) -> Output:
    """The same by torch's own means, which are NaN where nothing counts."""
    x, y = batch
    y = torch.where(y > 1, y, -100)
    return Output(nn.functional.cross_entropy(engine(x), y), weight=int((y > 0).sum()))


STEPS = {"words": by_words, "ignored": ignoring}


def trained_unevenly(layout: Layout | None, accumulate: int, kind: str) -> Any:
    model = net()
    criterion = nn.CrossEntropyLoss(reduction="sum" if kind == "sum" else "mean")
    engine = Engine(
        model, torch.optim.AdamW(model.parameters(), lr=0.05), criterion, layout=layout,
        clip_norm=0.5,
    )  # fmt: skip
    alone = layout is None
    batches = merged(accumulate) if alone else uneven_data()[engine.data_shard.rank]
    seen: list[int] = []
    note = hooks.Callback(after_step=lambda run: seen.append(run.samples))
    run = Trainer(
        engine, [hooks.Loss(), hooks.GradNorm(), note], accumulate=1 if alone else accumulate,
        step=STEPS.get(kind),
    )  # fmt: skip
    history = run.fit(batches, epochs=2)
    return engine.weights(), [row["train/loss"] for row in history], seen


def every_uneven(layout: Layout | None) -> Any:
    return {
        (accumulate, kind): trained_unevenly(layout, accumulate, kind)
        for accumulate in (1, 3)
        for kind in ("mean", "sum", "words", "ignored")
    }


def evaluated(layout: Layout | None) -> Any:
    """Results over data that does not divide, of a loader that is divided and of lists."""
    model = net()
    counts: Counter[int] = Counter()

    def count(run: Any) -> None:
        for batch, size in zip(run.batches, run.sizes, strict=True):
            counts.update(batch[2].tolist() if size else [])

    step = lambda engine, batch: Output(
        engine.criterion(scores := engine(batch[0]), batch[1]), scores, batch[1]
    )
    engine = Engine(model, None, nn.CrossEntropyLoss(), layout=layout)
    run = Trainer(engine, [hooks.Loss(), hooks.Metrics("accuracy"),
                           hooks.Callback(after_val_step=count)], step=step)  # fmt: skip
    x, y = samples(11)
    loader = DataLoader(TensorDataset(x.double(), y, torch.arange(11)), batch_size=4)
    return run.evaluate(loader), dict(counts), engine.data_shard.rank
