"""What every peer is given to do: the same model, data, seed and settings.

The model tells the time. It notes when it is called for the n-th time, so every loop is measured
alike, from within, whatever surrounds it.
"""

import gc
import os
from collections.abc import Callable, Iterable, Sized
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

BATCH = 8
CLASSES = 4


class Batches(Iterable[Any], Sized, Protocol):
    """A list of ready batches, or a DataLoader."""


class Watch:
    """Counts the calls of the model, and does what was asked for at a certain call."""

    def __init__(self) -> None:
        self.calls = 0
        self.at: dict[int, Callable[[], None]] = {}

    def call(self) -> None:
        self.calls += 1
        if self.calls in self.at:
            self.at[self.calls]()


class Watched(nn.Module):
    """A model under a watch."""

    def __init__(self, layers: nn.Module, watch: Watch) -> None:
        super().__init__()
        self.layers = layers
        self._call = watch.call

    def forward(self, x: Tensor) -> Tensor:
        self._call()
        return self.layers(x)  # type: ignore[no-any-return]

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_call": int}  # a copy is watched by nobody


@dataclass
class Work:
    """A training to do. ``batch_size`` and ``classes`` are there for those who must know."""

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
    """A model that hardly computes, so that the cost of the loop shows."""
    torch.manual_seed(0)
    middle = [nn.ReLU(), nn.Dropout(dropout)] if dropout else [nn.ReLU()]
    model = Watched(nn.Sequential(nn.Linear(8, 16), *middle, nn.Linear(16, CLASSES)), watch)
    return Work(watch, model, torch.optim.SGD(model.parameters(), lr=0.01), data, epochs=epochs)


def wide(watch: Watch, data: Any) -> Work:
    """A model of 4.2 million weights with Adam, 51 MB in all, so that a save shows."""
    torch.manual_seed(0)
    inner = [nn.Linear(2048, 1024), nn.ReLU(), nn.Linear(1024, 2048), nn.ReLU()]
    layers = nn.Sequential(nn.Linear(8, 2048), *inner, nn.Linear(2048, CLASSES))
    model = Watched(layers, watch)
    return Work(watch, model, torch.optim.Adam(model.parameters(), lr=1e-4), data)


def shuffled(steps: int) -> DataLoader[Any]:
    return DataLoader(TensorDataset(*tensors(steps)), BATCH, shuffle=True)


def loader(steps: int) -> DataLoader[Any]:
    return DataLoader(TensorDataset(*tensors(steps)), BATCH)


# Whole jobs


def held_out(dataset: Dataset[Any], size: int) -> DataLoader[Any]:
    """It draws its random numbers elsewhere, so that looking at it leaves the training's alone."""
    return DataLoader(dataset, size, generator=torch.Generator().manual_seed(0))


@cache
def digits_data() -> dict[str, Dataset[Any]]:
    """The 1,797 handwritten digits of scikit-learn."""
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    x = torch.tensor(images, dtype=torch.float32).reshape(-1, 1, 8, 8) / 16
    y = torch.tensor(labels, dtype=torch.int64)
    return {"train": TensorDataset(x[360:], y[360:]), "test": TensorDataset(x[:360], y[:360])}


def digits_part(name: str) -> Dataset[Any]:
    return digits_data()[name]


def digits_net() -> nn.Module:
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


def digits(watch: Watch) -> Work:
    """A convnet on digits, 10 epochs of 45 steps; digits.yaml is the same."""
    torch.manual_seed(0)
    train, test = digits_part("train"), digits_part("test")
    model = Watched(digits_net(), watch)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    data, val_data = DataLoader(train, 32, shuffle=True), held_out(test, 360)
    return Work(watch, model, optimizer, data, val_data, 10, 32, 10)


class Reader(nn.Module):
    """A small transformer over characters; scores come as (batch, character, position)."""

    def __init__(self, vocabulary: int, context: int, width: int = 64) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.place = nn.Parameter(torch.zeros(context, width))
        block = nn.TransformerEncoderLayer(width, 4, 4 * width, 0.1, batch_first=True)
        self.blocks = nn.TransformerEncoder(block, 2, enable_nested_tensor=False)
        self.head = nn.Linear(width, vocabulary)
        mask = nn.Transformer.generate_square_subsequent_mask(context)
        self.register_buffer("mask", mask, persistent=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens) + self.place
        return self.head(self.blocks(x, mask=self.mask, is_causal=True)).transpose(1, 2)  # type: ignore[no-any-return]


CONTEXT, WINDOWS = 64, 1280


@cache
def text_data() -> tuple[dict[str, Dataset[Any]], int]:
    """Windows of Python's language reference, and how many characters there are."""
    from pydoc_data.topics import topics

    reference = "\n\n".join(topics[name] for name in sorted(topics))
    reference = reference.encode("ascii", "ignore").decode()
    letters = {letter: number for number, letter in enumerate(sorted(set(reference)))}
    tokens = torch.tensor([letters[letter] for letter in reference[: WINDOWS * CONTEXT + 1]])
    x, y = tokens[:-1].reshape(-1, CONTEXT), tokens[1:].reshape(-1, CONTEXT)
    train, test = TensorDataset(x[256:], y[256:]), TensorDataset(x[:256], y[:256])
    return {"train": train, "test": test}, len(letters)


def text_part(name: str) -> Dataset[Any]:
    return text_data()[0][name]


def text_net() -> nn.Module:
    return Reader(text_data()[1], CONTEXT)


def text(watch: Watch) -> Work:
    """A small transformer that reads, 2 epochs of 32 steps; text.yaml is the same."""
    torch.manual_seed(0)
    train, test = text_part("train"), text_part("test")
    model = Watched(text_net(), watch)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    data, val_data = DataLoader(train, 32, shuffle=True), held_out(test, 128)
    return Work(watch, model, optimizer, data, val_data, 2, 32, text_data()[1])


def weights(model: nn.Module) -> list[float]:
    return [x for p in model.parameters() for x in p.detach().double().flatten().tolist()]


def resident() -> float:
    """Megabytes that this process has in memory."""
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6
