"""What processes do in the tests of padded targets."""

from functools import partial
from typing import Any

import torch
from torch import nn

from stoker import Engine, ForwardBackward, Layout, Trainer, hooks, seed_all
from support.tasks.rows import part_of

CLASSES, LENGTH = 5, 6


class Tagger(nn.Sequential):
    """Scores (batch, classes, length) for tokens (batch, length), in double precision."""

    def __init__(self) -> None:
        seed_all(3)
        super().__init__(
            nn.Embedding(7, 8), nn.Tanh(), nn.Linear(8, 8), nn.Linear(8, CLASSES), Transposed()
        )
        self.double()


class Transposed(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.transpose(1, 2)


def batch(rows: int = 16, ignored: int = -100, lengths: Any = None) -> Any:
    """Sequences of which each has another length; the rest is padding."""
    generator = torch.Generator().manual_seed(5)
    x = torch.randint(7, (rows, LENGTH), generator=generator)
    y = torch.randint(CLASSES, (rows, LENGTH), generator=generator)
    lengths = [(row * row) % (LENGTH + 1) for row in range(rows)] if lengths is None else lengths
    for row, length in enumerate(lengths):
        y[row, length:] = ignored
    return x, y


CLASS_WEIGHTS = torch.tensor([1.0, 2.0, 0.5, 3.0, 0.1], dtype=torch.float64)
CRITERIA = {
    "default": nn.CrossEntropyLoss,
    "pad 0": lambda: nn.CrossEntropyLoss(ignore_index=0),
    "classes": lambda: nn.CrossEntropyLoss(weight=CLASS_WEIGHTS.clone()),
    "smooth": lambda: nn.CrossEntropyLoss(label_smoothing=0.1),
    "smooth classes": lambda: nn.CrossEntropyLoss(CLASS_WEIGHTS.clone(), label_smoothing=0.1),
    "function": lambda: nn.functional.cross_entropy,
    "partial": lambda: partial(nn.functional.cross_entropy, ignore_index=-1, weight=CLASS_WEIGHTS),
    "sum": lambda: nn.CrossEntropyLoss(reduction="sum"),
}
IGNORED = {"pad 0": 0, "partial": -1}


def engine_of(kind: str, layout: Layout | None = None, model: nn.Module | None = None) -> Engine:
    model = Tagger() if model is None else model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01 if kind == "sum" else 0.5)
    return Engine(model, optimizer, CRITERIA[kind](), layout=layout)


def pieces(data: Any, sizes: list[int]) -> list[Any]:
    return list(zip(*(tensor.split(sizes) for tensor in data), strict=True))


def trained(layout: Layout | None, kind: str, accumulate: int, own_loop: bool = False) -> Any:
    """Weights, training loss and validation loss after one step over all sequences."""
    engine = engine_of(kind, layout)
    sizes = [16 // accumulate] * accumulate
    batches = [
        part_of(engine, one) for one in pieces(batch(ignored=IGNORED.get(kind, -100)), sizes)
    ]
    if own_loop:
        engine.zero_grad()
        ForwardBackward(engine)(*batches)
        engine.step()
        return engine.weights(), {}
    run = Trainer(engine, [hooks.Loss()], accumulate=accumulate)
    (row,) = run.fit(batches, batches, epochs=1)
    return engine.weights(), {name: row[name] for name in ("train/loss", "val/loss")}


def by_hand(kind: str) -> Any:
    """The same by a plain loop of torch, in one large batch."""
    engine = engine_of(kind)
    model, (x, y) = engine.model, batch(ignored=IGNORED.get(kind, -100))
    criterion = CRITERIA[kind]()
    loss = criterion(model(x), y)
    loss.backward()
    engine.optimizer.step()
    with torch.no_grad():
        after = criterion(model(x), y)
    count = len(x) if kind == "sum" else 1
    losses = {"train/loss": loss.item() / count, "val/loss": after.item() / count}
    return model.state_dict(), losses


def flat(layout: Layout | None, accumulate: int, kind: str = "default") -> Any:
    """The same with one label per sample, of which some are ignored; and a large batch by hand."""
    seed_all(2)
    model = nn.Linear(4, CLASSES).double()
    x = torch.randn(16, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    y = torch.randint(CLASSES, (16,), generator=torch.Generator().manual_seed(1))
    y[[1, 3, 5, 7, 9, 6]] = IGNORED.get(kind, -100)
    engine = engine_of(kind, layout, model)
    batches = [part_of(engine, one) for one in pieces((x, y), [16 // accumulate] * accumulate)]
    if layout is None:
        loss = CRITERIA[kind]()(model(x), y)
        loss.backward()
        engine.optimizer.step()
        return engine.weights(), {"train/loss": loss.item()}
    (row,) = Trainer(engine, [hooks.Loss()], accumulate=accumulate).fit(batches, epochs=1)
    return engine.weights(), {"train/loss": row["train/loss"]}
