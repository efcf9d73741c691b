"""What processes do in the tests of batch norms."""

from typing import Any

import torch
from torch import nn

from stoker import Engine, Layout, Trainer, hooks, seed_all


def convnet() -> nn.Module:
    seed_all(3)
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(16, 5),
        nn.BatchNorm1d(5, momentum=None), nn.Linear(5, 3), nn.BatchNorm1d(3, affine=False),
    ).double()  # fmt: skip


def trained(layout: Layout | None, samples: int, accumulate: int = 1) -> Any:
    """Weights, buffers and losses after two epochs, and what an average has copied."""
    ranks = layout.data_ranks if layout is not None else 1
    generator = torch.Generator().manual_seed(5)
    x = torch.randn(samples, 1, 4, 4, generator=generator, dtype=torch.float64)
    y = torch.arange(samples) % 3
    model = convnet()
    # The gradient of a bias before a norm is 0 but for rounding, which Adam would enlarge.
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    engine = Engine(model, optimizer, nn.CrossEntropyLoss(), layout=layout)
    trainer = Trainer(engine, [hooks.Loss(), hooks.EMA(0.5)], accumulate=accumulate)
    batches = [*zip(x.split(8 // ranks), y.split(8 // ranks), strict=True)]
    batches = batches[engine.data_shard.rank :: ranks]
    history = trainer.fit(batches, batches, epochs=2)
    return engine.weights(), [dict(row) for row in history]
