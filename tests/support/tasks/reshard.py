"""What processes do in the matrix of layouts: save in one, restore in every other."""

from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader

from stoker import Engine, Layout, Trainer, hooks
from stoker.core import dist
from stoker.core.tree import is_sharded
from support.killable_run import differences
from support.tasks.every_layout import LENGTH, VOCABULARY, engine_of, next_token

SAMPLES, BATCH, SAVED_AT = 30, 8, 2


def windows() -> torch.Tensor:
    """Samples of which no two are the same: the first tokens are the digits of their number."""
    made = torch.randint(
        VOCABULARY, (SAMPLES, LENGTH + 1), generator=torch.Generator().manual_seed(5)
    )
    made[:, 0], made[:, 1] = torch.arange(SAMPLES) // 10, torch.arange(SAMPLES) % 10
    return made


class Witness(hooks.Hook):
    """Notes the state that training starts from, the samples of each step, and its loss."""

    same_on_all_ranks = observes = True
    priority = 5

    def __init__(self, average: hooks.EMA, break_at: int | None) -> None:
        self.average, self.break_at = average, break_at
        self.state: Any = None
        self.samples: list[list[int]] = []
        self.losses: list[float] = []

    def state_dict(self):
        return {}

    def before_step(self, run):
        if run.step == self.break_at:
            self.state = complete_state(run.engine, self.average)
            raise KeyboardInterrupt("broken off")
        if self.state is None:
            self.state = complete_state(run.engine, self.average)
        rows = [
            int(row[0] * 10 + row[1])
            for batch, size in zip(run.batches, run.sizes, strict=True)
            for row in batch[:size]
        ]
        read = dict(dist.all_gather_object((run.engine.data_shard.rank, rows)))
        self.samples.append(sorted(row for part in read.values() for row in part))

    def after_step(self, run):
        own = (run.engine.data_shard.rank, run.loss, sum(run.sizes))
        with_loss = {
            rank: (loss, size)
            for rank, loss, size in dist.all_gather_object(own)
            if loss is not None
        }
        total = sum(size for _, size in with_loss.values())
        self.losses.append(sum(float(loss) * size / total for loss, size in with_loss.values()))


def complete_state(engine: Engine, average: hooks.EMA) -> dict[str, Any]:
    """The state of a run as one process has it, from what each process holds of it."""
    state = engine.state_dict()
    optimizer = state["optimizers"][""]
    local = {
        index: {key: _full(value) for key, value in entry.items()}
        for index, entry in optimizer["state"].items()
    }
    everywhere = dist.all_gather_object(local)
    moments = {index: entry for found in everywhere for index, entry in found.items()}
    assert (
        differences([{**moments, **found} for found in everywhere], [moments] * len(everywhere))
        == []
    )
    averages = engine.parallel_model.full_weights(average.state_dict()["average"])
    tied = averages.pop("head.weight") if engine.tied and "head.weight" in averages else None
    assert tied is None or torch.equal(tied, averages["embed.tokens.weight"])
    options = ("lr", "initial_lr", "betas", "weight_decay", "params")
    return {
        "model": {name: weight.clone() for name, weight in engine.weights().items()},
        "optimizers": {
            "state": dict(sorted(moments.items())),
            "param_groups": [{key: g[key] for key in options} for g in optimizer["param_groups"]],
        },
        "lr_schedulers": state["lr_schedulers"],
        "average": averages,
    }


def losses_in_one_process(folder: Path, tied: bool, samples: list[list[int]]) -> list[float]:
    """The losses that a loop of torch's own has from a saved state on, with these samples."""
    state = torch.load(folder / "expected.pt")
    engine = _engine(None, tied)
    model, optimizer = engine.model, engine.optimizer
    model.load_state_dict(state["model"])
    groups = state["optimizers"]["param_groups"]
    groups = [
        {**g, **new} for g, new in zip(optimizer.state_dict()["param_groups"], groups, strict=True)
    ]
    optimizer.load_state_dict({**state["optimizers"], "param_groups": groups})
    engine.lr_schedulers[""].load_state_dict(state["lr_schedulers"][""])
    losses = []
    for rows in samples:
        optimizer.zero_grad()
        read = windows()[rows]
        loss = nn.functional.cross_entropy(model(read[:, :-1]).flatten(0, 1), read[:, 1:].flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), engine.clip_norm)
        optimizer.step()
        engine.lr_schedulers[""].step()
        losses.append(loss.item())
    return losses


def _engine(layout: Layout | None, tied: bool) -> Engine:
    return engine_of(layout, dtype=torch.float64, dropout=0.0, tied=tied, heads=4)


def _full(value: Any) -> torch.Tensor:
    return (value.full_tensor() if is_sharded(value) else value).detach().clone()


def _fit(
    layout: Layout | None, tied: bool, break_at: int | None = None, **options: Any
) -> tuple[Any, list[list[int]], list[float]]:
    """Train for an epoch; the state at its begin or break, the samples and losses of its steps."""
    engine = _engine(layout, tied)
    engine.tied = tied
    average = hooks.EMA(0.9)
    witness = Witness(average, break_at)
    saves = [] if break_at is None else [hooks.Checkpoint("1st", keep=None)]
    run = Trainer(
        engine, [average, witness, *saves], step=next_token, seed=3,
        run_dir=options.pop("run_dir", None),
    )  # fmt: skip
    train = DataLoader(windows(), batch_size=BATCH // engine.data_shard.world_size, shuffle=True)
    with suppress(KeyboardInterrupt):
        run.fit(train, epochs=1, **options)
    return witness.state, witness.samples, witness.losses


def saved_in(layout: Layout | None, tied: bool, folder: Path) -> list[list[int]]:
    """Train in a folder and break off after a checkpoint; the samples that were read."""
    state, samples, _ = _fit(layout, tied, SAVED_AT, run_dir=folder)
    if dist.is_main():
        torch.save(state, folder / "expected.pt")
    return samples


def resumed_from(layout: Layout | None, tied: bool, folders: list[Path]) -> list[Any]:
    """Resume each run in this layout: how its state differs, the samples read, and the losses."""
    found = []
    for folder in folders:
        expected = torch.load(folder / "expected.pt")
        state, samples, losses = _fit(layout, tied, resume=folder)
        found.append((differences(state, expected), samples, losses))
    return found
