"""A complete job: a convnet on digits."""

from functools import cache
from typing import Any

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset
from work import Watch, Watched, Work, held_out


@cache
def data() -> dict[str, Dataset[Any]]:
    """Load the 1,797 handwritten digits of scikit-learn."""
    images, labels = load_digits(return_X_y=True)
    x = torch.tensor(images, dtype=torch.float32).reshape(-1, 1, 8, 8) / 16
    y = torch.tensor(labels, dtype=torch.int64)
    return {"train": TensorDataset(x[360:], y[360:]), "test": TensorDataset(x[:360], y[:360])}


def part(name: str) -> Dataset[Any]:
    return data()[name]


def net() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 32, kernel_size=3, padding=1),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, kernel_size=3, padding=1),
        nn.BatchNorm2d(64),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Dropout(0.25),
        nn.Linear(64 * 2 * 2, 10),
    )


def task(watch: Watch) -> Work:
    """Build a convnet on digits, 10 epochs of 45 steps; digits.yaml is the same."""
    torch.manual_seed(0)
    model = Watched(net(), watch)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    train, test = DataLoader(part("train"), 32, shuffle=True), held_out(part("test"), 360)
    return Work(watch, model, optimizer, train, test, 10, 32, 10)
