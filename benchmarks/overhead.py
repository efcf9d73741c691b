"""Measure the microseconds per step that Stoker adds to the loop you would write yourself.

One model is tiny (an MLP of 8-16-4, batch 8), so that the cost of the loop shows; the other is
empty and computes nothing, so that almost nothing else shows. Every variant runs in the same
process on one core, in interleaved rounds; the start of a fit is included. The benchmark prints
three figures: the fastest round of a variant minus that of the plain loop, the same for the first
quartile, which other work on the machine hardly disturbs, and the median of the differences per
round. The plain loop compared with itself shows the noise.

    python benchmarks/overhead.py [--rounds 12] [--steps 4000]
"""

import argparse
import io
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any, TypeAlias

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from stoker import Engine, Hook, Trainer, hooks

BATCH = 8


Parts: TypeAlias = tuple[nn.Module, torch.optim.Optimizer, nn.Module]
Variant: TypeAlias = Callable[[Any, Parts], float]


def tiny() -> Parts:
    """Build a model that hardly computes."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    return model, torch.optim.SGD(model.parameters(), lr=0.01), nn.CrossEntropyLoss()


def empty() -> Parts:
    """Build a model that computes nothing: one parameter passes through all calls of a step."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.number = nn.Parameter(torch.zeros(()))

        def forward(self, _: torch.Tensor) -> torch.Tensor:
            return self.number

    class Criterion(nn.Module):
        def forward(self, outputs: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
            return outputs

    class NoUpdate(torch.optim.SGD):
        def step(self) -> None:
            pass

    model = Model()
    return model, NoUpdate(model.parameters(), lr=0.01), Criterion()


def plain(data: Any, parts: Parts) -> float:
    model, optimizer, criterion = parts
    model.train()
    began = time.perf_counter()
    for x, y in data:
        optimizer.zero_grad()
        loss = criterion(model(x), y)
        loss.backward()
        optimizer.step()
    return time.perf_counter() - began


def own_loop(data: Any, parts: Parts) -> float:
    engine = Engine(*parts)
    engine.train()
    began = time.perf_counter()
    for x, y in data:
        engine.zero_grad()
        loss = engine.criterion(engine(x), y)
        engine.backward(loss)
        engine.step()
    return time.perf_counter() - began


def stoker(make_hooks: Callable[[], list[Hook]], *, folder: bool = False) -> Variant:
    def run(data: Any, parts: Parts) -> float:
        with tempfile.TemporaryDirectory() as path:
            run_dir = os.path.join(path, "run") if folder else None
            trainer = Trainer(Engine(*parts), make_hooks(), run_dir=run_dir)
            began = time.perf_counter()
            trainer.fit(data, epochs=1)
            return time.perf_counter() - began

    return run


class Idle(Hook):
    """Override no point of a step."""

    def __init__(self, number: int) -> None:
        self.name = f"idle{number}"

    def before_predict(self, run: object) -> None:
        pass


class Terminal(io.StringIO):
    """A fake terminal, so that the progress bar is drawn."""

    def isatty(self) -> bool:
        return True


VARIANTS: dict[str, Variant] = {
    "plain loop again (noise)": plain,
    "own loop with an Engine": own_loop,
    "Trainer, no hooks": stoker(list),
    "Trainer, 100 idle hooks": stoker(lambda: [Idle(n) for n in range(100)]),
    "Trainer, defaults": stoker(hooks.default),
    "Trainer, defaults and run folder": stoker(hooks.default, folder=True),
}
WITH_ACCURACY = "… and accuracy on every step"
ACCURATE = stoker(lambda: [*hooks.default(), hooks.Metrics("accuracy", on="both")], folder=True)


def fast_quarter(values: list[float]) -> float:
    """Return the first quartile: the time of a round on an preserve_rng machine."""
    return statistics.quantiles(values, n=4)[0]


def measure(
    name: str, make: Callable[[], Parts], data: Any, variants: dict[str, Variant], rounds: int
) -> None:
    steps = len(data)
    print(f"\n{name}: µs per step added to the plain loop ({rounds} rounds of {steps} steps)")
    print(f"  {'':36}{'fastest':>10}{'quartile':>10}{'median':>10}")
    times: dict[str, list[float]] = {"": [], **{variant: [] for variant in variants}}
    for round_number in range(rounds + 2):
        for variant, run in {"": plain, **variants}.items():
            microseconds = run(data, make()) / steps * 1e6
            if round_number >= 2:  # the first two are warm-up
                times[variant].append(microseconds)
    base = times.pop("")
    fastest, quartile, median = min(base), fast_quarter(base), statistics.median(base)
    print(f"  {'plain loop, total':36}{fastest:10.1f}{quartile:10.1f}{median:10.1f}")
    for variant, values in times.items():
        fast = min(values) - fastest
        fast_part = fast_quarter(values) - quartile
        middle = statistics.median(v - b for v, b in zip(values, base, strict=True))
        print(f"  {variant:36}{fast:+10.1f}{fast_part:+10.1f}{middle:+10.1f}")


def import_time() -> None:
    script = (
        "import time, torch; b = time.perf_counter(); import stoker; print(time.perf_counter() - b)"
    )
    kept = {name: v for name, v in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}

    def seconds() -> float:
        return float(subprocess.check_output([sys.executable, "-c", script], env=kept))

    best = min(seconds() for _ in range(6)) * 1000  # the first may have to compile
    print(f"\nimport stoker after import torch: {best:.0f} ms (best of 6)")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--steps", type=int, default=4000)
    options = parser.parse_args()
    torch.set_num_threads(1)
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    x = torch.randn(options.steps * BATCH, 8)
    y = torch.randint(0, 4, (options.steps * BATCH,))
    batches = list(zip(x.split(BATCH), y.split(BATCH), strict=True))
    loader = DataLoader(TensorDataset(x, y), batch_size=BATCH)
    terminal, sys.stderr = sys.stderr, Terminal()
    try:
        measure("An empty model, prepared batches", empty, batches, VARIANTS, 2 * options.rounds)
        variants = {**VARIANTS, WITH_ACCURACY: ACCURATE}
        measure("A list of prepared batches", tiny, batches, variants, options.rounds)
        measure("A DataLoader", tiny, loader, variants, options.rounds)
    finally:
        sys.stderr = terminal
    import_time()


if __name__ == "__main__":
    main()
