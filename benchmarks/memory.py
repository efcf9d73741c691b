"""Measure the memory growth of a very long run: a million steps with the default hooks.

The model is empty, so that a million steps take a minute or two, and every step is logged into a
run folder. The last column, the growth of the resident size, must stay near zero.

    python benchmarks/memory.py [--steps 1000000]
"""

import argparse
import itertools
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import nn

from stoker import Engine, Hook, Trainer, hooks
from stoker.events import JsonLines


class Empty(nn.Module):
    """Return one parameter, which passes through all the calls of a step."""

    def __init__(self) -> None:
        super().__init__()
        self.number = nn.Parameter(torch.zeros(()))

    def forward(self, _: torch.Tensor) -> torch.Tensor:
        return self.number


class Size(Hook):
    """Print the resident size ten times in a run, and its growth since the first time."""

    same_on_all_ranks = True

    def __init__(self, steps: int) -> None:
        self.every = max(1, steps // 10)
        self.sizes: list[float] = []

    def after_step(self, run: Any) -> None:
        if run.step % self.every == 0:
            self.sizes.append(resident_mb())
            grown = self.sizes[-1] - self.sizes[0]
            print(f"{run.step:>10,} steps  {self.sizes[-1]:8.1f} MB  {grown:+7.2f} MB", flush=True)


def resident_mb() -> float:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    raise SystemExit("/proc/self/status has no VmRSS: this benchmark needs Linux")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=1_000_000)
    options = parser.parse_args()
    torch.set_num_threads(1)
    model = Empty()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    engine = Engine(model, optimizer, lambda outputs, _: outputs, device="cpu")
    batch = (torch.zeros(8, 2), torch.zeros(8))
    usual = hooks.default(progress=False)
    with tempfile.TemporaryDirectory() as folder:
        each_step = hooks.Write(JsonLines(f"{folder}/each-step.jsonl"), every=1)
        each_step.name = "every step"
        trainer = Trainer(engine, [*usual, each_step, Size(options.steps)], run_dir=f"{folder}/run")
        trainer.fit(itertools.repeat(batch), max_steps=options.steps)


if __name__ == "__main__":
    main()
