"""Measure the peak memory of a model that is made on the meta device, trained and saved.

    python benchmarks/sharded_memory.py --gigabytes 4

Trains a transformer of that size for one step and saves a checkpoint: in one process, made
ordinarily, and sharded over two processes, made on the meta device. Prints the peak resident
memory of each process, and the ratio. AdamW and the copy that a checkpoint takes make one process
need seven times the size of the model; with --optimizer sgd it is three times.
"""

import argparse
import json
import resource
import subprocess
import sys
import tempfile

import torch
from torch import nn

WIDTH, CONTEXT = 1024, 8


def train(gigabytes: float, folder: str, kind: str, *, sharded: bool) -> None:
    """Train one step and save; print the peak memory of this process."""
    from stoker import Engine, Layout, Trainer, hooks
    from stoker.core import dist
    from stoker.nn import Transformer

    torch.set_num_threads(1)
    layers = max(2, round(gigabytes * 2**30 / (4 * 12 * WIDTH**2)))
    with torch.device("meta" if sharded else "cpu"):
        model = Transformer(1000, CONTEXT, width=WIDTH, layers=layers, heads=8)
    size = sum(parameter.numel() * 4 for parameter in model.parameters())
    make = torch.optim.AdamW if kind == "adamw" else torch.optim.SGD
    optimizer = make(model.parameters(), lr=1e-3, foreach=False)
    layout = Layout(shard=2) if sharded else None
    engine = Engine(model, optimizer, nn.CrossEntropyLoss(), layout=layout)

    def step(engine: Engine, tokens: torch.Tensor) -> torch.Tensor:
        return engine.criterion(engine(tokens).flatten(0, 1), tokens.flatten())

    data = [torch.zeros(2, CONTEXT, dtype=torch.long)] * (2 if sharded else 1)
    trainer = Trainer(engine, [hooks.Checkpoint()], step=step, run_dir=folder)
    trainer.fit(data, max_steps=1)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(json.dumps({"rank": dist.rank(), "peak": peak, "model": size}), flush=True)


def measure(gigabytes: float, kind: str, *, sharded: bool) -> list[dict[str, int]]:
    """Return what each process printed."""
    with tempfile.TemporaryDirectory() as folder:
        worker = [__file__, "--gigabytes", str(gigabytes), "--folder", folder, "--optimizer", kind]
        worker += ["--sharded"] if sharded else []
        start = ["-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone"]
        command = [sys.executable, *(start if sharded else []), *worker]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    rows = [line for line in done.stdout.splitlines() if line.startswith("{")]
    return [json.loads(row) for row in rows]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gigabytes", type=float, default=1.0, help="size of the model")
    parser.add_argument("--optimizer", choices=["adamw", "sgd"], default="adamw")
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    parser.add_argument("--sharded", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.folder is not None:
        train(options.gigabytes, options.folder, options.optimizer, sharded=options.sharded)
        return
    (alone,) = measure(options.gigabytes, options.optimizer, sharded=False)
    pair = measure(options.gigabytes, options.optimizer, sharded=True)
    print(f"model: {alone['model'] / 2**30:.2f} GiB")
    print(f"one process: {alone['peak'] / 2**30:.2f} GiB")
    for row in sorted(pair, key=lambda row: row["rank"]):
        ratio = row["peak"] / alone["peak"]
        print(f"shard 2, rank {row['rank']}: {row['peak'] / 2**30:.2f} GiB, {ratio:.2f} of one")


if __name__ == "__main__":
    main()
