"""Measure how the cost of a part grows with the amount of work, as ratios and fitted slopes.

Each curve has sizes that grow by a factor of ten or so. Variants alternate in one process on one
thread; a figure is the smallest processor time of some rounds, which other work on the machine
disturbs least, and "noise" is how far the median lies above it. The slope is that of the logarithm
of the cost over the logarithm of the size: 0 is flat, 1 is proportional.

    python benchmarks/growth.py [epochs] [logging] [hooks] [metrics] [parameters] [loaders]
                                [dataset] [history] [checkpoints] [config] [--rounds 5] [--write]
"""

import argparse
import json
import math
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any, TypeAlias

import publish
import torch
from torch import nn
from torch.utils.data import DataLoader, RandomSampler, TensorDataset

from stoker import Engine, Hook, Trainer, config, hooks
from stoker.checkpoint import Checkpoints
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


def metrics_curve() -> Curve:
    """Accuracies of every training step."""
    data = batches(200)

    def by_hand(count: int) -> None:
        model, optimizer, criterion = parts()
        right = [torch.tensor(0) for _ in range(count)]
        for x, y in data:
            optimizer.zero_grad()
            scores = model(x)
            criterion(scores, y).backward()
            optimizer.step()
            for one in right:
                one.add_((scores.argmax(1) == y).sum())

    def by_stoker(count: int) -> None:
        named = {f"accuracy{i}": "accuracy" for i in range(count)}
        fit_stoker(data, 1, [hooks.Metrics(on="train", **named)], folder=False)

    return {
        n: {
            "by hand": lambda n=n: seconds(lambda: by_hand(n), 200),
            "Stoker": lambda n=n: seconds(lambda: by_stoker(n), 200),
        }
        for n in (1, 10, 100)
    }


def loaders_curve() -> Curve:
    """Validation loaders of ten batches each, per loader."""

    def by_hand(loaders: dict[str, Any]) -> None:
        model, _, criterion = parts()
        model.eval()
        with torch.no_grad():
            for loader in loaders.values():
                sum(criterion(model(x), y) * len(y) for x, y in loader).item()

    def by_stoker(loaders: dict[str, Any]) -> None:
        Trainer(Engine(*parts()), [hooks.Loss()]).evaluate(loaders)

    data = batches(10)
    curve: Curve = {}
    for n in (1, 5, 50):
        loaders = {f"set{i}": data for i in range(n)}
        curve[n] = {
            "by hand": lambda n=n, loaders=loaders: seconds(lambda: by_hand(loaders), n),
            "Stoker": lambda n=n, loaders=loaders: seconds(lambda: by_stoker(loaders), n),
        }
    return curve


def checkpoints_curve() -> Curve:
    """Opening a folder with this many checkpoints and finding the newest; a listing beside it."""
    curve: Curve = {}
    for n in (1, 10, 100, 1000, 10_000):
        folder = Path(tempfile.mkdtemp(prefix="stoker-growth-")) / "checkpoints"
        with Checkpoints(folder, keep=None) as checkpoints:
            checkpoints.save(1, {"model": {"weight": torch.zeros(2)}}, wait=True)
        first = next(folder.glob("step-*"))
        for step in range(2, n + 1):
            shutil.copytree(first, folder / f"step-{step:08}")

        def newest(folder: Path = folder) -> None:
            with Checkpoints(folder, keep=None) as checkpoints:
                checkpoints.newest()

        curve[n] = {
            "a listing": lambda folder=folder: seconds(lambda: sorted(folder.iterdir()), 1),
            "Stoker": lambda newest=newest: seconds(newest, 1),
        }
    return curve


def config_curve() -> Curve:
    """Reading a config with this many nodes and checking it, per node; YAML alone beside it."""
    import yaml

    curve: Curve = {}
    for n in (10, 100, 1000, 10_000):
        path = Path(tempfile.mkdtemp(prefix="stoker-growth-")) / "config.yaml"
        node = "{_target_: torch.nn.Linear, in_features: 4, out_features: 4}"
        layers = "\n".join(f"  - {node}" for _ in range(n))
        path.write_text(f"model:\n  _target_: torch.nn.Sequential\n  _args_:\n{layers}\n")
        text = path.read_text()
        load: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
        curve[n] = {
            "YAML": lambda n=n, text=text, load=load: seconds(lambda: yaml.load(text, load), n),
            "Stoker": lambda n=n, path=path: seconds(lambda: config.load(path), n),
        }
    return curve


CURVES = {
    "epochs": epochs_curve,
    "logging": logging_curve,
    "hooks": hooks_curve,
    "metrics": metrics_curve,
    "parameters": parameters_curve,
    "loaders": loaders_curve,
    "dataset": dataset_curve,
    "history": history_curve,
    "checkpoints": checkpoints_curve,
    "config": config_curve,
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


def table(name: str, rounds: int) -> publish.Table:
    sizes = CURVES[name]()
    rows, noises = [], []
    found: dict[str, dict[int, float]] = {}
    for variant, points, noise in measure(sizes, rounds):
        found[variant] = points
        noises.append(f"{variant} {noise:.0%}")
        cells = [f"{1e6 * value:,.1f}" for value in points.values()]
        rows.append([variant, *cells, f"{slope(points):.2f}"])
    base, other = found
    ratios = [found[other][size] / found[base][size] for size in sizes]
    rows.append([f"× {base}", *(f"{ratio:.2f}" for ratio in ratios), ""])
    text = f"slope {slope(found[other]):.2f}, {ratios[0]:.2f} to {ratios[-1]:.2f} × {base}"
    findings = []
    if name == "epochs":
        met = max(ratios) <= 2 and slope(found[other]) <= 0.1
        findings.append(publish.Finding("One-step epochs, 30 to 3,000", text, "≤ 2 ×, flat", met))
    if name == "parameters":
        question = "Small parameter tensors, 10 to 3,000"
        findings.append(publish.Finding(question, text, "≤ 1.00 ×", ratios[-1] <= 1.005))
    return publish.Table(
        name.capitalize(),
        f"{CURVES[name].__doc__} Microseconds of processor time, the smallest of {rounds} rounds.",
        [*(f"{size:,}" for size in sizes), "slope"],
        rows,
        f"how far the median lies above the smallest: {', '.join(noises)}",
        lines={v: {str(n): 1e6 * one for n, one in points.items()} for v, points in found.items()},
        unit="µs",
        findings=findings,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("curves", nargs="*", choices=[*CURVES, []], default=[])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--write", action="store_true", help="write docs/benchmarks/growth.md")
    options = parser.parse_args()
    torch.set_num_threads(1)
    for name in options.curves or CURVES:
        publish.finish("growth", [table(name, options.rounds)], write=options.write)


if __name__ == "__main__":
    main()
