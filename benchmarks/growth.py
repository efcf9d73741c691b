"""Measure how the cost of a part grows with the amount of work, as ratios and fitted slopes.

Each curve has sizes that grow by a factor of ten or so. Variants alternate in one process on one
thread; a figure is the smallest processor time of some rounds, which other work on the machine
disturbs least, and "noise" is how far the median lies above it. The slope is that of the logarithm
of the cost over the logarithm of the size: 0 is flat, 1 is proportional.

    python benchmarks/growth.py [epochs] [logging] [hooks] [parameters] [dataset] [history]
                                [--rounds 5] [--picture docs/images/growth.png]

The picture needs matplotlib.
"""

import argparse
import json
import math
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch import nn
from torch.utils.data import DataLoader, RandomSampler, TensorDataset

from stoker import Engine, Hook, Trainer, hooks
from stoker.data import PermutationSampler
from stoker.events import History, JsonLines
from stoker.resume.history_files import HistoryFiles

Variant: TypeAlias = Callable[[], float]
"""Do the work once; return seconds of processor time per unit of it."""

Curve: TypeAlias = dict[int, dict[str, Variant]]
"""Variants by name for each size; the first is what the others are compared with."""


def parts(layers: int = 2) -> tuple[nn.Module, torch.optim.Optimizer, nn.Module]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 4), *(nn.Linear(4, 4) for _ in range(layers - 1)))
    return model, torch.optim.SGD(model.parameters(), lr=0.01), nn.CrossEntropyLoss()


def batches(count: int) -> list[Any]:
    return [(torch.randn(8, 8), torch.randint(0, 4, (8,))) for _ in range(count)]


def seconds(work: Callable[[], object], units: int) -> float:
    began = time.process_time()
    work()
    return (time.process_time() - began) / units


def fit_plain(data: Any, epochs: int, layers: int = 2, log: Path | None = None) -> None:
    model, optimizer, criterion = parts(layers)
    model.train()
    with open(log or "/dev/null", "w") as file:
        for _ in range(epochs):
            for step, (x, y) in enumerate(data, 1):
                optimizer.zero_grad()
                loss = criterion(model(x), y)
                loss.backward()
                optimizer.step()
                if log is not None:
                    file.write(json.dumps({"step": step, "loss": loss.item()}) + "\n")


def fit_stoker(
    data: Any, epochs: int, used: list[Hook], *, layers: int = 2, folder: bool = True
) -> None:
    with tempfile.TemporaryDirectory() as path:
        run_dir = Path(path) / "run" if folder else None
        Trainer(Engine(*parts(layers)), used, run_dir=run_dir).fit(data, epochs=epochs)


def usual() -> list[Hook]:
    return hooks.default(progress=False)


def epochs_curve() -> Curve:
    """One-step epochs, with the defaults and a run folder."""
    x, y = batches(1)[0]
    loader = DataLoader(TensorDataset(x, y), batch_size=8, shuffle=True)
    return {
        n: {
            "plain": lambda n=n: seconds(lambda: fit_plain(loader, n), n),
            "Stoker": lambda n=n: seconds(lambda: fit_stoker(loader, n, usual()), n),
        }
        for n in (30, 100, 300, 1000, 3000)
    }


def logging_curve() -> Curve:
    """A line of JSON per step."""

    def by_hand(data: list[Any]) -> None:
        with tempfile.TemporaryDirectory() as path:
            fit_plain(data, 1, log=Path(path) / "metrics.jsonl")

    def by_stoker(data: list[Any]) -> None:
        fit_stoker(data, 1, [hooks.Loss(window=1), hooks.Write(JsonLines(), every=1)])

    curve: Curve = {}
    for n in (1000, 3000, 10_000):
        data = batches(n)
        curve[n] = {
            "by hand": lambda n=n, data=data: seconds(lambda: by_hand(data), n),
            "Stoker": lambda n=n, data=data: seconds(lambda: by_stoker(data), n),
        }
    return curve


class Idle(Hook):
    """Overrides no point of a step."""

    def __init__(self, number: int) -> None:
        self.name = f"idle{number}"


def hooks_curve() -> Curve:
    """Hooks that do nothing during a step."""
    data = batches(1000)
    return {
        n: {
            "plain": lambda: seconds(lambda: fit_plain(data, 1), 1000),
            "Stoker": lambda n=n: seconds(
                lambda: fit_stoker(data, 1, [Idle(i) for i in range(n)], folder=False), 1000
            ),
        }
        for n in (1, 10, 100, 1000)
    }


def parameters_curve() -> Curve:
    """Layers with a weight and a bias of a few numbers each."""
    data = batches(30)
    return {
        n: {
            "plain": lambda n=n: seconds(lambda: fit_plain(data, 1, n // 2), 30),
            "Stoker": lambda n=n: seconds(
                lambda: fit_stoker(data, 1, usual(), layers=n // 2, folder=False), 30
            ),
        }
        for n in (10, 100, 1000, 3000)
    }


def dataset_curve() -> Curve:
    """The first 1,000 indices of a shuffled dataset; torch draws all of them first."""

    def first(sampler: Any) -> None:
        list(islice(sampler, 1000))

    return {
        n: {
            "shuffle=True": lambda n=n: seconds(lambda: first(RandomSampler(range(n))), 1),
            "PermutationSampler": lambda n=n: seconds(lambda: first(PermutationSampler(n)), 1),
        }
        for n in (10**3, 10**5, 10**7)
    }


def history_curve() -> Curve:
    """What a save does with the history, after this many epochs."""
    curve: Curve = {}
    for n in (10, 100, 1000, 10_000, 100_000):
        rows = History({"epoch": i, "step": i, "train/loss": 1 / (i + 1)} for i in range(n))
        found = HistoryFiles(Path(tempfile.mkdtemp(prefix="stoker-growth-")))
        found.save(rows)
        curve[n] = {
            "all of it": lambda rows=rows: seconds(lambda: HistoryFiles().save(rows), 1),
            "Stoker": lambda rows=rows, found=found: seconds(lambda: found.save(rows), 1),
        }
    return curve


CURVES = {
    "epochs": epochs_curve,
    "logging": logging_curve,
    "hooks": hooks_curve,
    "parameters": parameters_curve,
    "dataset": dataset_curve,
    "history": history_curve,
}


def slope(points: dict[int, float]) -> float:
    """Return the exponent of the power of the size that fits the cost best."""
    x, y = [math.log(n) for n in points], [math.log(max(v, 1e-9)) for v in points.values()]
    return statistics.linear_regression(x, y).slope


def measure(curve: Curve, rounds: int) -> Iterator[tuple[str, dict[int, float], float]]:
    """Yield the name of each variant, its cost for each size, and its noise."""
    times: dict[str, dict[int, list[float]]] = {}
    for _ in range(rounds):
        for size, variants in curve.items():
            for name, run in variants.items():
                times.setdefault(name, {}).setdefault(size, []).append(run())
    for name, found in times.items():
        noise = [statistics.median(values) / min(values) - 1 for values in found.values()]
        yield name, {size: min(values) for size, values in found.items()}, max(noise)


def draw(found: dict[str, dict[str, dict[int, float]]], path: Path) -> None:
    import matplotlib as mpl

    mpl.use("agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, len(found), figsize=(4 * len(found), 3.2), squeeze=False)
    for axis, (curve, variants) in zip(axes[0], found.items(), strict=True):
        for name, points in variants.items():
            axis.loglog([*points], [1e6 * v for v in points.values()], marker="o", label=name)
        axis.set(title=curve, xlabel="size", ylabel="µs")
        axis.legend()
    figure.tight_layout()
    figure.savefig(path, dpi=100)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("curves", nargs="*", choices=[*CURVES, []], default=[])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--picture", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    found: dict[str, dict[str, dict[int, float]]] = {}
    for curve in options.curves or CURVES:
        sizes = CURVES[curve]()
        print(f"\n{curve}: {CURVES[curve].__doc__} µs of processor time")
        print(f"  {'':20}{''.join(f'{size:>11,}' for size in sizes)}{'slope':>9}{'noise':>8}")
        found[curve] = {}
        for name, points, noise in measure(sizes, options.rounds):
            found[curve][name] = points
            cells = "".join(f"{1e6 * value:11.1f}" for value in points.values())
            print(f"  {name:20}{cells}{slope(points):9.2f}{noise:8.0%}")
        base, *others = found[curve]
        for name in others:
            pairs = zip(found[curve][name].values(), found[curve][base].values(), strict=True)
            print(f"  {f'× {base}':20}{''.join(f'{a / b:11.2f}' for a, b in pairs)}")
    if options.picture is not None:
        draw(found, options.picture)


if __name__ == "__main__":
    main()
