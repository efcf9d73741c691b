"""The work of every peer: the same model, data, seed and settings.

The model measures the time: it records when it is called for the n-th time, so every loop is
measured in the same way, from within.
"""

import gc
import os
import sys
from collections.abc import Callable, Iterable, Sized
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

BATCH = 8
CLASSES = 4


class Batches(Iterable[Any], Sized, Protocol):
    """A list of prepared batches, or a DataLoader."""


class Watch:
    """Count the calls of the model, and run functions at given calls.

    ``sys.model_called`` is told of each call, if it is set. Trainers that look for state to save do
    not look there, so that it costs them nothing.
    """

    def __init__(self) -> None:
        self.calls = 0
        self.at: dict[int, Callable[[], None]] = {}

    def call(self) -> None:
        self.calls += 1
        if self.calls in self.at:
            self.at[self.calls]()
        if hasattr(sys, "model_called"):
            sys.model_called()


class Watched(nn.Module):
    """A model whose calls are counted."""

    def __init__(self, layers: nn.Module, watch: Watch) -> None:
        super().__init__()
        self.layers = layers
        self._call = watch.call

    def forward(self, x: Tensor) -> Tensor:
        self._call()
        return self.layers(x)  # type: ignore[no-any-return]

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_call": int}  # the calls of a copy are not counted


@dataclass
class Work:
    """A training. Some peers need ``batch_size`` and ``classes``.

    ``by_hand`` are the batches as a careful person writes them, for the plain loop; ``losses`` says
    whether the validation loss after each epoch is measured.
    """

    watch: Watch
    model: nn.Module
    optimizer: torch.optim.Optimizer
    data: Any
    val_data: Any = None
    epochs: int = 1
    batch_size: int = BATCH
    classes: int = CLASSES
    criterion: nn.Module = field(default_factory=nn.CrossEntropyLoss)
    folder: Path = field(default_factory=Path)
    by_hand: Batches | None = None
    losses: bool = False

    @property
    def dataset(self) -> Dataset[Any]:
        return self.data.dataset  # type: ignore[no-any-return]


def tensors(steps: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(steps * BATCH, 8, generator=generator)
    return x, torch.randint(0, CLASSES, (steps * BATCH,), generator=generator)


def batches(steps: int) -> list[tuple[Tensor, Tensor]]:
    x, y = tensors(steps)
    return list(zip(x.split(BATCH), y.split(BATCH), strict=True))


def tiny(watch: Watch, data: Any, dropout: float = 0.0, epochs: int = 1) -> Work:
    """Build a model that hardly computes, so that the cost of the loop shows."""
    torch.manual_seed(0)
    middle = [nn.ReLU(), nn.Dropout(dropout)] if dropout else [nn.ReLU()]
    model = Watched(nn.Sequential(nn.Linear(8, 16), *middle, nn.Linear(16, CLASSES)), watch)
    return Work(watch, model, torch.optim.SGD(model.parameters(), lr=0.01), data, epochs=epochs)


def wide(watch: Watch, data: Any) -> Work:
    """Build a model of 4.2 million weights with Adam, 51 MB, so that a save shows."""
    torch.manual_seed(0)
    inner = [nn.Linear(2048, 1024), nn.ReLU(), nn.Linear(1024, 2048), nn.ReLU()]
    layers = nn.Sequential(nn.Linear(8, 2048), *inner, nn.Linear(2048, CLASSES))
    model = Watched(layers, watch)
    return Work(watch, model, torch.optim.Adam(model.parameters(), lr=1e-4), data)


def shuffled(steps: int) -> DataLoader[Any]:
    return DataLoader(TensorDataset(*tensors(steps)), BATCH, shuffle=True)


def loader(steps: int) -> DataLoader[Any]:
    return DataLoader(TensorDataset(*tensors(steps)), BATCH)


def held_out(dataset: Dataset[Any], size: int) -> DataLoader[Any]:
    """Use a separate generator, so that iterating does not change the RNG of training."""
    return DataLoader(dataset, size, generator=torch.Generator().manual_seed(0))


def weights(model: nn.Module) -> list[float]:
    return [x for p in model.parameters() for x in p.detach().double().flatten().tolist()]


def resident() -> float:
    """Return the resident memory of this process in MB."""
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6
