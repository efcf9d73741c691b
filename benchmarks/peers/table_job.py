"""Realistic work: an MLP on a table of a million rows in memory."""

import math
from collections.abc import Iterator
from functools import cache

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset
from work import Watch, Watched, Work, held_out

ROWS, BATCH = 1_000_000, 1024


@cache
def table() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(ROWS, 20, generator=generator)
    return x, (x[:, 0] + x[:, 1] * x[:, 2] > 0).long()


class Gathered:
    """Shuffled batches by one indexing operation each, as a careful person writes them.

    It draws what a DataLoader draws: a seed for workers, and one for the order.
    """

    def __init__(self, x: Tensor, y: Tensor) -> None:
        self.x, self.y = x, y

    def __len__(self) -> int:
        return math.ceil(len(self.x) / BATCH)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        _, seed = (int(torch.empty((), dtype=torch.int64).random_().item()) for _ in range(2))
        order = torch.randperm(len(self.x), generator=torch.Generator().manual_seed(seed))
        for rows in order.split(BATCH):
            yield self.x[rows], self.y[rows]


def task(watch: Watch) -> Work:
    """Build 2 epochs of 958 steps."""
    x, y = table()
    held = 20_000
    torch.manual_seed(0)
    layers = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU())
    model = Watched(nn.Sequential(layers, nn.Linear(64, 2)), watch)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    train = DataLoader(TensorDataset(x[held:], y[held:]), BATCH, shuffle=True)
    test = held_out(TensorDataset(x[:held], y[:held]), 4096)
    work = Work(watch, model, optimizer, train, test, 2, BATCH, 2)
    work.by_hand, work.losses = Gathered(x[held:], y[held:]), True
    return work
