"""Measure microseconds per batch of data in memory: a DataLoader compared with gathering.

The data is shuffled rows of 64 floats and a label, in batches of several sizes. All variants run in
one process on one core, in interleaved rounds; the figures are medians, and ratios are of medians.

    python benchmarks/data.py [--rounds 7] [--rows 16384]
"""

import argparse
import os
import statistics
import time
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.utils.data import DataLoader, Subset, TensorDataset

from stoker import data
from stoker.data import BatchFeeder


def seconds(batches: Iterable[Any]) -> float:
    began = time.perf_counter()
    for _ in batches:
        pass
    return time.perf_counter() - began


def variants(x: torch.Tensor, y: torch.Tensor, size: int) -> dict[str, Callable[[], Iterable[Any]]]:
    def plain() -> DataLoader[Any]:
        return DataLoader(TensorDataset(x, y), size, shuffle=True)

    half = DataLoader(Subset(TensorDataset(x, y), range(len(x))), size, shuffle=True)
    one, marked, fed, part = (
        plain(),
        BatchFeeder(data.by_sample(plain())),
        BatchFeeder(plain()),
        BatchFeeder(half),
    )
    own = data.loader((x, y), size, shuffle=True)
    return {
        "DataLoader in a plain loop": lambda: one,
        "DataLoader in fit, by_sample": lambda: marked,
        "DataLoader in fit": lambda: fed,
        "DataLoader over a Subset in fit": lambda: part,
        "stoker.data.loader in a plain loop": lambda: own,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--rows", type=int, default=16384)
    options = parser.parse_args()
    torch.set_num_threads(1)
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    x, y = torch.randn(options.rows, 64), torch.randint(0, 10, (options.rows,))
    print(f"{options.rows} rows, {options.rounds} rounds: µs per batch, ratio to the first")
    for size in (8, 32, 256, 1024):
        made = variants(x, y, size)
        times: dict[str, list[float]] = {name: [] for name in made}
        for round_number in range(options.rounds + 1):
            for name, batches in made.items():
                microseconds = seconds(batches()) / (options.rows // size) * 1e6
                if round_number:  # the first is warm-up
                    times[name].append(microseconds)
        base = statistics.median(next(iter(times.values())))
        print(f"\nbatches of {size}")
        for name, values in times.items():
            middle = statistics.median(values)
            print(f"  {name:36}{middle:10.1f}{middle / base:8.3f}")


if __name__ == "__main__":
    main()
