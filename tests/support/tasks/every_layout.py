"""One training of a transformer that runs in every layout."""

from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader

from stoker import Engine, Layout, Output, Trainer, hooks, seed_all
from stoker.nn import Transformer, lr
from support.tasks.layouts import Break

VOCABULARY, LENGTH = 11, 6


def tokens(count: int = 36) -> torch.Tensor:
    return torch.randint(
        VOCABULARY, (count, LENGTH + 1), generator=torch.Generator().manual_seed(5)
    )


def next_token(engine: Engine, window: torch.Tensor) -> Output:
    scores, targets = engine(window[:, :-1]), window[:, 1:]
    loss = engine.criterion(scores.flatten(0, 1), targets.flatten())
    return Output(loss, scores.flatten(0, 1), targets.flatten(), weight=targets.numel())


def engine_of(
    layout: Layout | None, *, dtype: torch.dtype, dropout: float, tied: bool, heads: int = 2
) -> Engine:
    seed_all(3)
    model = Transformer(
        VOCABULARY, LENGTH, width=8, layers=4, heads=heads, dropout=dropout, tied=tied
    ).to(dtype)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
    return Engine(
        model, optimizer, nn.CrossEntropyLoss(), layout=layout, clip_norm=0.3,
        lr_scheduler=lr.cosine(optimizer, 12, warmup_steps=2),
    )  # fmt: skip


def trained(
    layout: Layout | None, parts: int, accumulate: int, *, tied: bool = False, samples: int = 36
) -> Any:
    """Weights, losses and predictions after two epochs over shuffled data, in double precision."""
    engine = engine_of(layout, dtype=torch.float64, dropout=0.0, tied=tied)
    run = Trainer(
        engine, [hooks.Loss(), hooks.GradNorm(), hooks.Metrics("accuracy", on="both")],
        step=next_token, accumulate=accumulate,
    )  # fmt: skip
    train = DataLoader(tokens(samples), batch_size=12 // parts)
    held_out = DataLoader(tokens()[:11], batch_size=8 // parts)
    history = run.fit(train, held_out, epochs=2)
    results = [{name: row[name] for name in sorted(row)} for row in history]
    predicted = run.predict(DataLoader(tokens()[:11, :-1], batch_size=8 // parts))
    return engine.weights(), results, predicted, run.run.samples


def trained_in(layout: Layout, accumulate: int, tied: bool, samples: int = 36) -> Any:
    return trained(layout, layout.data_ranks, accumulate, tied=tied, samples=samples)


def resumable(
    layout: Layout | None, folder: Path, break_at: int | None, dropout: float, stock: bool = True
) -> Any:
    """Train in a folder, from its newest checkpoint if it has one, and stop where requested."""
    exact = dropout > 0
    parts = layout.data_ranks if layout is not None else 1
    engine = engine_of(
        layout, dtype=torch.float32 if exact else torch.float64, dropout=dropout, tied=False
    )
    usual = [
        hooks.Loss(window=3), hooks.EMA(0.9), hooks.Metrics("accuracy", on="both"),
        hooks.KeepBest("val/loss"), hooks.Write(hooks.JsonLines(), every=2), hooks.SaveWeights(),
    ]  # fmt: skip
    broken = [Break(break_at)] if break_at is not None else []
    saves = hooks.Checkpoint("1st", keep=None)
    run = Trainer(
        engine, [*(usual if stock else []), saves, *broken], step=next_token, run_dir=folder
    )
    train = DataLoader(tokens(72), batch_size=12 // parts, shuffle=exact)
    held_out = DataLoader(tokens()[:10], batch_size=8 // parts)
    try:
        run.fit(train, held_out, epochs=2, validate_every="4st")
    except KeyboardInterrupt:
        return None
    averages = next((h.state_dict()["average"] for h in run.hooks if h.name == "EMA"), {})
    rows = (folder / "metrics.jsonl").read_text().splitlines() if stock else []
    rows = [row[: row.index('"time"')] for row in rows]
    state = engine.parallel_model.full_weights(averages)
    return engine.weights(), state, list(run.history), rows, torch.rand(2)
