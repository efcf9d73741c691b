"""Lose and add processes of an elastic training hundreds of times, and compare all bits.

Each run starts on 2 to 4 processes. At random steps, one of them gets SIGKILL, SIGTERM or SIGSTOP,
or hangs after its forward pass until its heartbeat ends it, or the launcher gets SIGTTIN or
SIGTTOU, which add and remove a process. Lost processes are replaced. Every step of every process
must be the same as on one process: weights, optimizer, random numbers, results; and so must be
every line of metrics.jsonl. Each sample must be used once per epoch, and no process may be
restarted.

    python benchmarks/elastic.py [--events 200] [--seed 0] [--summary FILE]
"""

import argparse
import json
import random
import sys
import tempfile
from collections import Counter
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from stoker import Engine, Hook, Layout, Trainer, hooks
from stoker.run import Run
from stoker.testing.elastic_proof import difference_of, reference_of
from stoker.testing.elastic_run import EVENTS, ElasticRun, Happened, plan_events

SAMPLES, EPOCHS, EVENTS_PER_RUN = 276, 10, 20  # the last step of an epoch has half a batch
HEARTBEAT = 8.0  # seconds after which a process that hangs ends itself


class Model(nn.Module):
    """Leaves the first feature alone, which is the number of the sample."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(8, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.3), nn.Linear(32, 5)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.layers(x[:, 1:])
        return found


class Account(Hook):
    """Writes which samples a step has used, on each process.

    It does not say that it does the same on all, so that they synchronize after each step.
    """

    observes = True
    reads_outputs = ("train",)

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def after_step(self, run: Run) -> None:
        used = [int(number) for output in run.outputs for number in output.targets]
        with (self.folder / f"{torch.multiprocessing.current_process().pid}.samples").open(
            "a"
        ) as f:
            print(json.dumps([run.step, run.current_epoch, sorted(used)]), file=f)


def labels() -> torch.Tensor:
    return torch.randint(5, (SAMPLES,), generator=torch.Generator().manual_seed(1))


def loss(outputs: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(outputs, labels()[numbers])


def train(run_dir: Path) -> None:
    torch.manual_seed(0)
    numbers = torch.arange(SAMPLES)
    x = torch.cat([numbers[:, None].float(), torch.randn(SAMPLES, 8)], dim=1)
    data = TensorDataset(x, numbers)
    model = Model()
    trainer = Trainer(
        Engine(
            model,
            torch.optim.AdamW(model.parameters(), 0.01),
            loss,
            clip_norm=1.0,
            layout=Layout(replicate=-1, logical_ranks=6),
        ),
        hooks=[
            *hooks.default(log_every=1, progress=False),
            hooks.EMA(0.9),
            hooks.Heartbeat(after=HEARTBEAT),
            Account(run_dir.parent),
        ],
        run_dir=run_dir,
        seed=1,
    )
    trainer.fit(
        DataLoader(data, batch_size=4, shuffle=True), DataLoader(data, batch_size=30), epochs=EPOCHS
    )


def accounted(folder: Path) -> str:
    """Return what is wrong with the samples that were used; "" if nothing is."""
    found: dict[int, tuple[int, list[int]]] = {}
    for path in folder.glob("*.samples"):
        for line in path.read_text().split("\n")[:-1]:
            step, epoch, used = json.loads(line)
            if found.setdefault(step, (epoch, used)) != (epoch, used):
                return f"step {step}: processes have used different samples"
    for epoch in {epoch for epoch, _ in found.values()}:
        used = sorted(number for at, numbers in found.values() if at == epoch for number in numbers)
        if used != [*range(SAMPLES)]:
            return f"epoch {epoch}: not every sample was used once"
    return ""


def restarted(run: ElasticRun, happened: list[Happened]) -> str:
    """Return whether more processes have ended early than were lost."""
    times = [found for found in run.times().values() if found]
    last = max(found[-1][1:] for found in times)
    early = sum(found[-1][1:] < last for found in times)
    lost = sum(event.kind != "add" for event in happened)
    return f"{early} processes ended early, but {lost} were lost" if early > lost else ""


def one_run(reference: Any, seed: int, folder: Path) -> tuple[list[Happened], str]:
    rng = random.Random(seed)
    nproc = rng.choice((2, 3, 4))
    events = plan_events(reference, EVENTS_PER_RUN, EVENTS, seed)
    run = ElasticRun(train, folder, nproc, 4, events)
    happened = run.run()
    wrong = difference_of(reference, run.records())
    return happened, str(wrong or accounted(folder) or restarted(run, happened))


def summary(happened: list[Happened], runs: int) -> dict[str, Any]:
    kinds: dict[str, Any] = {}
    for kind in EVENTS:
        seconds = [e.seconds for e in happened if e.kind == kind and e.seconds is not None]
        if seconds:
            kinds[kind] = {
                "events": Counter(event.kind for event in happened)[kind],
                "median seconds to the next step": round(median(seconds), 2),
                "longest": max(seconds),
            }
    return {"events": len(happened), "runs": runs, "same bits": True, "kinds": kinds}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--events", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--summary", type=Path, default=Path("build/elastic.json"))
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:  # the reference, with its metrics.jsonl
        return soak(options, Path(folder) / "reference")


def soak(options: argparse.Namespace, folder: Path) -> int:
    happened: list[Happened] = []
    reference = reference_of(train, folder)
    print(f"reference: {len(reference.steps)} steps on one process", flush=True)
    runs = 0
    while len(happened) < options.events:
        seed = options.seed + runs
        with tempfile.TemporaryDirectory() as elastic:
            found, wrong = one_run(reference, seed, Path(elastic) / "elastic")
        happened, runs = happened + found, runs + 1
        if wrong:
            print(f"seed {seed}: {wrong}")
            return 1
        print(f"{len(happened)} events in {runs} runs, all the same bits", flush=True)
        options.summary.parent.mkdir(parents=True, exist_ok=True)
        options.summary.write_text(json.dumps(summary(happened, runs), indent=2) + "\n")
    print(options.summary.read_text())
    return 0


if __name__ == "__main__":
    sys.exit(main())
