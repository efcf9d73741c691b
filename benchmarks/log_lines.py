"""Measure a line of JSON per step, with Stoker and by hand: same content, same durability.

    python benchmarks/log_lines.py [--rounds 9] [--steps 4000] [--write]

A line has the step, epoch, samples, time and loss. Lines reach the file within half a second, as
Stoker writes them ("together"), or each at once ("each"), for which the loop by hand flushes.
Variants alternate in one process on one core, on prepared batches of a tiny model.
"""

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import publish
import torch
from torch import nn

from stoker import Engine, Trainer, hooks
from stoker.events import JsonLines
from stoker.events.writers import jsonl

BATCH = 8
Run: TypeAlias = Callable[[list[Any], Path], None]


def parts() -> tuple[nn.Module, torch.optim.Optimizer, nn.Module]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    return model, torch.optim.SGD(model.parameters(), lr=0.01), nn.CrossEntropyLoss()


def plain(data: list[Any], path: Path) -> None:
    model, optimizer, criterion = parts()
    model.train()
    for x, y in data:
        optimizer.zero_grad()
        criterion(model(x), y).backward()
        optimizer.step()


def by_hand(seconds: float) -> Run:
    """Write lines that wait in a buffer for at most so many seconds."""

    def run(data: list[Any], path: Path) -> None:
        model, optimizer, criterion = parts()
        model.train()
        samples, flushed = 0, 0.0
        with path.open("w", buffering=1 << 20) as file:
            for step, (x, y) in enumerate(data, 1):
                optimizer.zero_grad()
                loss = criterion(model(x), y)
                loss.backward()
                optimizer.step()
                samples += len(y)
                line = {"step": step, "epoch": 0, "samples": samples}
                line |= {"time": round(time.time(), 3), "train/loss": loss.item()}
                file.write(json.dumps(line) + "\n")
                if time.monotonic() - flushed >= seconds:
                    file.flush()
                    flushed = time.monotonic()

    return run


def by_stoker(seconds: float) -> Run:
    def run(data: list[Any], path: Path) -> None:
        jsonl._SECONDS = seconds  # the public writer has one setting: half a second
        writing = [hooks.Loss(window=1), hooks.Write(JsonLines(path), every=1)]
        Trainer(Engine(*parts()), writing).fit(data, epochs=1)
        jsonl._SECONDS = 0.5

    return run


PAIRS: dict[str, tuple[Run, Run]] = {
    "together": (by_hand(0.5), by_stoker(0.5)),
    "each": (by_hand(0.0), by_stoker(0.0)),
}


def microseconds(run: Run, data: list[Any], folder: Path) -> tuple[float, Path]:
    path = folder / "lines.jsonl"
    path.unlink(missing_ok=True)
    began = time.perf_counter()
    run(data, path)
    return (time.perf_counter() - began) / len(data) * 1e6, path


def same_lines(first: str, second: str) -> bool:
    """Return whether both have the same lines, apart from the time and the last one.

    Stoker adds the results of the epoch to its last line.
    """
    rows = [[json.loads(line) for line in text.splitlines()] for text in (first, second)]
    for row in [*rows[0], *rows[1]]:
        del row["time"]
    return rows[0][:-1] == rows[1][: len(rows[0]) - 1]


def measure(rounds: int, data: list[Any], folder: Path) -> dict[str, list[float]]:
    times: dict[str, list[float]] = {}
    for number in range(rounds + 1):
        variants: dict[str, Run] = {"no lines": plain}
        for name, (hand, stoker) in PAIRS.items():
            variants |= {f"by hand, {name}": hand, f"Stoker, {name}": stoker}
            variants |= {f"by hand again, {name}": hand}
        texts = {}
        for name, run in variants.items():
            found, path = microseconds(run, data, folder)
            texts[name] = path.read_text() if path.exists() else ""
            if number:  # the first round warms up
                times.setdefault(name, []).append(found)
        for name in PAIRS:
            if not same_lines(texts[f"by hand, {name}"], texts[f"Stoker, {name}"]):
                raise SystemExit(f"{name}: the lines of Stoker are not those by hand")
    return times


def table(name: str, times: dict[str, list[float]]) -> publish.Table:
    base = times[f"by hand, {name}"]
    ratios: dict[str, list[float]] = {}
    rows = []
    for kind in ("no lines", f"by hand, {name}", f"by hand again, {name}", f"Stoker, {name}"):
        ratios[kind] = [mine / theirs for mine, theirs in zip(times[kind], base, strict=True)]
        middle = statistics.median(ratios[kind])
        row = [kind, f"{statistics.median(times[kind]):.0f}", f"{min(times[kind]):.0f}"]
        rows.append([*row, f"{middle:.2f}", f"{min(times[kind]) / min(base):.2f}"])
    ratio = statistics.median(ratios[f"Stoker, {name}"])
    noise = statistics.median(ratios[f"by hand again, {name}"])
    told = {"together": "half a second together", "each": "one by one"}[name]
    title = f"Lines written {told}"
    text = f"Microseconds per step, medians and fastest of {len(base)} rounds."
    question = "A JSON line per step" if name == "together" else "… each flushed at once"
    found = publish.Finding(question, f"{ratio:.2f} × by hand", "≤ 1.05 ×", ratio <= 1.05)
    return publish.Table(
        title,
        text,
        ["µs per step", "fastest", "× by hand", "× of the fastest"],
        rows,
        f"by hand compared with itself {noise:.2f} ×",
        {kind: statistics.median(times[kind]) for kind in ratios},
        "µs per step",
        findings=[found],
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--steps", type=int, default=4000)
    parser.add_argument("--write", action="store_true", help="write docs/benchmarks/logging.md")
    options = parser.parse_args()
    torch.set_num_threads(1)
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    x = torch.randn(options.steps * BATCH, 8)
    y = torch.randint(0, 4, (options.steps * BATCH,))
    data = list(zip(x.split(BATCH), y.split(BATCH), strict=True))
    with tempfile.TemporaryDirectory() as folder:
        times = measure(options.rounds, data, Path(folder))
    publish.finish("logging", [table(name, times) for name in PAIRS], write=options.write)


if __name__ == "__main__":
    main()
