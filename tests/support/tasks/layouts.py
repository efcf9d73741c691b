"""What processes do in the tests of layouts; each returns plain values or tensors."""

import os
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from stoker import Engine, Layout, Preempted, Trainer, hooks, seed_all
from stoker.nn import lr
from support.toys import samples


def net(dtype: torch.dtype = torch.float64) -> nn.Module:
    seed_all(3)
    blocks = [nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(3)]
    return nn.Sequential(nn.Linear(4, 8), nn.Sequential(*blocks), nn.Linear(8, 3)).to(dtype)


def data(count: int = 24, size: int = 8, dtype: torch.dtype = torch.float64) -> list[Any]:
    x, y = samples(count)
    return list(zip(x.to(dtype).split(size), y.split(size), strict=True))


def made(layout: Layout | None = None, **options: Any) -> Engine:
    model = net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    return Engine(
        model, optimizer, nn.CrossEntropyLoss(), layout=layout, clip_norm=0.5,
        lr_scheduler=lr.cosine(optimizer, 12, warmup_steps=2), **options,
    )  # fmt: skip


def mine(batch: Any) -> Any:
    """The part of a batch that this process reads: every second row, or so."""
    rank, count = dist.get_rank(), dist.get_world_size()
    return tuple(tensor[rank::count] for tensor in batch)


def trained(layout: Layout | None = None, accumulate: int = 1, epochs: int = 2, own=mine) -> Any:
    run = Trainer(made(layout), [hooks.Loss(), hooks.GradNorm()], accumulate=accumulate)
    history = run.fit([own(batch) for batch in data()], epochs=epochs)
    return run.engine.weights(), [row["train/loss"] for row in history], run.run.step


class Break(hooks.Hook):
    """Ends the run with an error after so many steps."""

    same_on_all_ranks = observes = True

    def __init__(self, step: int) -> None:
        self.step = step

    def after_step(self, run):
        if run.step == self.step:
            raise KeyboardInterrupt("broken off")


def with_dropout(layout: Layout, **options: Any) -> Engine:
    seed_all(3)
    blocks = [nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.3)) for _ in range(3)]
    model = nn.Sequential(nn.Linear(4, 8), nn.Sequential(*blocks), nn.Linear(8, 3))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    return Engine(
        model, optimizer, nn.CrossEntropyLoss(), layout=layout, clip_norm=0.5,
        lr_scheduler=lr.cosine(optimizer, 12, warmup_steps=2), **options,
    )  # fmt: skip


def resumed(layout: Layout, folder: Path, break_at: int | None) -> Any:
    """Train in a folder, and stop at a step if requested; weights, results, next draws."""
    stock = [
        hooks.Loss(window=3), hooks.EMA(0.9), hooks.KeepBest("val/loss"),
        hooks.Metrics("accuracy", on="both"), hooks.Write(hooks.JsonLines(), every=2),
        hooks.Checkpoint("2st"), hooks.SaveWeights(), hooks.LogFile(),
    ]  # fmt: skip
    broken = [Break(break_at)] if break_at is not None else []
    run = Trainer(with_dropout(layout), [*stock, *broken], run_dir=folder)
    batches = [mine(batch) for batch in data(48, 8, torch.float32)]
    try:
        run.fit(batches, batches[:2], epochs=2, validate_every="3st")
    except KeyboardInterrupt:
        return None
    rows = (folder / "metrics.jsonl").read_text().splitlines()
    rows = [
        row.partition('"time"')[0] + row.partition('"time"')[2].partition(",")[2] for row in rows
    ]
    states = {
        hook.name: hook.state_dict() for hook in run.hooks if hook.name in ("Loss", "Metrics")
    }
    return run.engine.weights(), rows, list(run.history), torch.rand(2), states


def asking(folder: Path, ask: str) -> Any:
    """Rank 1 alone asks something of the run at step 3; what both have done."""
    done: list[Any] = []

    def act(run):
        if dist.get_rank() == 1 and run.step == 3 and ask != "skip":
            run.stop("rank 1 has seen enough") if ask == "stop" else run.request(ask)

    def skip(run):
        if dist.get_rank() == 1 and run.step == 2 and "skipped" not in done and ask == "skip":
            done.append("skipped")
            run.skip_update("rank 1 does not like it")

    note = hooks.Callback(
        name="note", after_val=lambda run: done.append(("val", run.step)),
        after_epoch=lambda run: done.append(("epoch", run.step)),
        after_step=act, before_update=skip,
    )  # fmt: skip
    stock = [hooks.Loss(), hooks.Checkpoint(None, keep=None), hooks.SaveWeights(), note]
    run = Trainer(made(), stock, run_dir=folder)
    batches = [mine(batch) for batch in data(48)]
    run.fit(batches, batches[:1], epochs=2, validate_every=None)
    saved = sorted(path.name for path in (folder / "checkpoints").iterdir() if path.name[0] != ".")
    seen = [one for one in done if one != "skipped"]
    return seen, saved, run.run.step, run.run.samples, run.history.stop_reason, run.engine.weights()


def signalled(folder: Path, number: int, rank: int) -> Any:
    """One process is sent a signal in the middle; where both end, and whether they say so."""
    steps = []

    def act(run):
        steps.append(run.step)
        if run.step == 3 and dist.get_rank() == rank:
            os.kill(os.getpid(), number)

    noisy = hooks.Callback(name="signal", after_step=act)
    noisy.same_on_all_ranks = True
    run = Trainer(made(), [hooks.Loss(), hooks.Checkpoint(None, keep=None), noisy], run_dir=folder)
    try:
        run.fit([mine(batch) for batch in data()] * 2000, max_steps=5000)
        preempted = False
    except Preempted:
        preempted = True
    return steps[-1], preempted, run.run.stop_reason
