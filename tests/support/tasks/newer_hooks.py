"""What two processes do with the hooks that users of other trainers know."""

import json
import math
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from stoker import Engine, Layout, Output, Trainer, hooks, seed_all
from stoker.core import dist

SAMPLES = 36


def data() -> tuple[Tensor, Tensor]:
    x = torch.randn(SAMPLES, 4, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    return x, torch.arange(SAMPLES) % 3


def loader(ranks: int) -> DataLoader[Any]:
    return DataLoader(TensorDataset(*data()), 8 // ranks)


def trainer(
    *more: Any, layout: Layout | None = None, norm: bool = False, **options: Any
) -> Trainer:
    seed_all(3)
    first: list[nn.Module] = [nn.BatchNorm1d(4, affine=False)] if norm else []
    model = nn.Sequential(*first, nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3)).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    engine = Engine(model, optimizer, nn.CrossEntropyLoss(), layout=layout)
    return Trainer(engine, [hooks.Loss(), *more], **options)


def _exp(loss: float) -> float:
    return math.exp(loss)


def scheduled(layout: Layout | None) -> Any:
    """Steps, results and weights with an accumulation schedule and derived results."""
    made = trainer(
        hooks.AccumulationSchedule({2: 2}),
        hooks.Derive(perplexity=_exp),
        hooks.Metrics("accuracy", spread=lambda outputs, targets: outputs.std().item(), on="both"),
        layout=layout,
    )
    ranks = made.engine.data_shard.world_size
    history = made.fit(loader(ranks), loader(ranks), epochs=3)
    return made.run.step, [dict(row) for row in history], made.engine.weights()


def averaged(layout: Layout | None) -> Any:
    """Weights and statistics after SWA, and the inputs of one epoch on this rank."""
    seen: list[Tensor] = []

    def collect(run: Any) -> None:
        if run.current_epoch == 1 and run.sizes[0]:  # no padding batch
            seen.append(run.batches[0][0])

    collecting = hooks.Callback(after_step=collect)
    made = trainer(hooks.SWA(start_epoch=2), collecting, layout=layout, norm=True)
    shard = made.engine.data_shard
    size = 8 // shard.world_size
    batches = [*zip(*(one.split(size) for one in data()), strict=True)]
    made.fit(batches[shard.rank :: shard.world_size], epochs=3)
    return made.engine.weights(), seen


def two_heads(layout: Layout | None) -> Any:
    """Results of two heads."""

    def step(engine: Engine, batch: Any) -> Output:
        scores = engine(batch[0])
        heads = {"class": scores, "parity": scores[:, :2]}
        targets = {"class": batch[1], "parity": batch[1] % 2}
        return Output(engine.criterion(scores, batch[1]), heads, targets)

    metrics = hooks.Metrics("accuracy", heads=["class", "parity"])
    made = trainer(metrics, layout=layout, step=step)
    ranks = made.engine.data_shard.world_size
    return [dict(row) for row in made.fit(loader(ranks), loader(ranks), epochs=2)]


def limited() -> Any:
    """The last step and why; the clock of each rank is far from that of the other."""
    made = trainer(hooks.TimeLimit(minutes=0.3 / 60), layout=Layout(replicate=2))
    made.fit(loader(2), epochs=100_000)
    return made.run.step, made.run.stop_reason


class Trial:
    """A trial of Optuna that is pruned at the second report."""

    def __init__(self) -> None:
        self.reported: list[int] = []

    def report(self, value: float, step: int) -> None:
        self.reported.append(step)

    def should_prune(self) -> bool:
        return len(self.reported) == 2


def pruned(everywhere: bool) -> Any:
    """The last step and why, and what the trial of each rank was told."""
    trial = Trial() if everywhere or dist.is_main() else None
    made = trainer(hooks.Prune(trial), layout=Layout(replicate=2))
    made.fit(loader(2), loader(2), epochs=9)
    return made.run.step, made.run.stop_reason, trial and trial.reported


def recorded(folder: Path) -> Any:
    """The rows of the run folder with the load of the device, and the points of the curves."""
    curve = hooks.LiveCurve(refresh=0.0)
    made = trainer(
        hooks.DeviceStats(2), hooks.Write(hooks.JsonLines(), every=2), curve,
        layout=Layout(replicate=2), run_dir=folder,
    )  # fmt: skip
    made.fit(loader(2), loader(2), epochs=2)
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    points = {name: len(series) for name, series in curve.state_dict()["series"].items()}
    return [row for row in rows if "device/ram" in row], points
