"""Trainings that resume exactly, and some that only seem to."""

import itertools
import random
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from stoker import Engine, Hook, Trainer, hooks, seed_all
from stoker.data import SeededDataset
from stoker.events import JsonLines
from stoker.nn import lr


class Points(Dataset):
    """Samples that are drawn anew each time they are read."""

    def __init__(self, size: int = 40) -> None:
        self.x = torch.randn(size, 6, generator=torch.Generator().manual_seed(3))

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int):
        return self.x[index] + 0.1 * torch.randn(6), int(self.x[index].sum() > 0)


class OwnNoise(Points):
    """The same with generators from seeds that nobody can save."""

    def __init__(self) -> None:
        super().__init__()
        self.seeds = itertools.count()
        self.draw = np.random.default_rng(1)

    def __getitem__(self, index: int):
        x, y = super().__getitem__(index)
        self.draw = np.random.default_rng(next(self.seeds))
        return x + torch.from_numpy(self.draw.normal(size=6)).float(), y


class Jitter(Hook):
    """Shakes the rate with random numbers of its own, which its state_dict leaves out."""

    def __init__(self) -> None:
        self.draw = random.Random(2)

    def state_dict(self):
        return {}

    def before_update(self, run) -> None:
        for group in next(iter(run.engine.optimizers.values())).param_groups:
            group["lr"] = 0.01 * (1 + self.draw.random())


class Forgets(Hook):
    """Scales the gradients by how often it was called; saves half of what it uses."""

    def __init__(self) -> None:
        self.calls, self.scale = 0, 1.0

    def before_update(self, run) -> None:
        self.calls += 1
        self.scale *= 0.9
        for parameter in run.engine.model.parameters():
            parameter.grad.mul_(self.scale)

    def state_dict(self):
        return {"calls": self.calls}

    def load_state_dict(self, state) -> None:
        self.calls = state["calls"]


class Counting(nn.Module):
    """Drops more with every batch that it sees."""

    def __init__(self) -> None:
        super().__init__()
        self.seen = 0
        self.batches = itertools.count(1)  # cannot be saved

    def forward(self, x):
        if self.training:
            self.seen = next(self.batches)
        return x * (1 + self.seen / 10)


def net(*more: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.Dropout(0.4), *more,
                         nn.Linear(16, 2))  # fmt: skip


def training(*extra: Hook, data=Points, more=(), seed: int | None = 7, checkpoint=True, workers=0):
    """A function that trains for 12 steps in the run folder it is given."""

    def train(run_dir: Path) -> None:
        if seed is not None:
            seed_all(seed)
        model = net(*[kind() for kind in more])
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        schedule = lr.cosine(optimizer, 12, warmup_steps=3)
        engine = Engine(model, optimizer, nn.CrossEntropyLoss(), lr_scheduler=schedule)
        own = [
            hooks.Loss(), hooks.LR(), hooks.Timing(), hooks.EMA(0.9), hooks.Metrics("accuracy"),
            hooks.Write(JsonLines(), every=2), hooks.Memory(),
            hooks.Checkpoint("2st", keep=2) if checkpoint else None,
            *[kind() for kind in extra],
        ]  # fmt: skip
        own_data = SeededDataset(data(), seed=5) if workers else data()
        trainer = Trainer(engine, own, accumulate=2, run_dir=run_dir)
        trainer.fit(
            DataLoader(own_data, batch_size=4, shuffle=True, num_workers=workers),
            DataLoader(Points(12), batch_size=4),
            max_steps=12,
            validate_every="3st",
        )

    return train
