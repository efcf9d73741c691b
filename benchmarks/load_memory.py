"""Measure the peak memory of loading a checkpoint, compared with the state that is loaded.

    python benchmarks/load_memory.py [--gigabytes 1]

Trains a transformer with Adam for one step and saves a checkpoint. Then fresh processes resume it:
one process, two with half of each tensor, and two with half of the stages. Each prints its peak
resident memory while it loads, above what it needs without model and state, and the size of its own
state. Then they load it again, over the state that they have; what remains after that is printed as
well: packages that loading imports are part of it.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from torch import nn

WIDTH, CONTEXT = 512, 8
LAYOUTS = {"one process": {}, "shard 2": {"shard": 2}, "pipeline 2": {"pipeline": 2}}


def memory(field: str) -> int:
    """Return a figure of this process in bytes: "VmRSS" is now, "VmHWM" the peak."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * int(next(line for line in lines if line.startswith(field)).split()[1])


def forget_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5")


def work(gigabytes: float, folder: str, layout: str) -> None:
    """Train, or load what was trained; print the figures of this process."""
    from stoker import Engine, Layout, Trainer, hooks
    from stoker.core import dist
    from stoker.core.tree import local_part
    from stoker.nn import Transformer

    torch.set_num_threads(1)
    sizes = LAYOUTS[layout]
    given = Layout(**sizes) if sizes else None
    small = nn.Linear(2, 2)  # so that packages and buffers of the parts are there
    torch.optim.Adam(small.parameters()).step()
    Engine(small, torch.optim.Adam(small.parameters()), nn.MSELoss())
    base = memory("VmRSS")
    layers = max(2, round(gigabytes * 2**30 / (3 * 4 * 12 * WIDTH**2)))
    with torch.device("meta" if sizes else "cpu"):
        model = Transformer(1000, CONTEXT, width=WIDTH, layers=layers, heads=8)
    optimizer = torch.optim.Adam(model.parameters(), foreach=False)
    engine = Engine(model, optimizer, nn.CrossEntropyLoss(), layout=given)

    def step(engine: Engine, tokens: torch.Tensor) -> torch.Tensor:
        return engine.criterion(engine(tokens).flatten(0, 1), tokens.flatten())

    trainer = Trainer(engine, [hooks.Checkpoint()], step=step, run_dir=folder)
    found = {}
    forget_peak()
    if list(Path(folder).glob("checkpoints/step-*1")):
        trainer.load(folder)
        found["first"] = memory("VmHWM") - base
    else:
        trainer.fit([torch.zeros(2, CONTEXT, dtype=torch.long)] * 2, max_steps=1)
        engine.zero_grad()
    forget_peak()
    trainer.load(folder)
    found |= {"again": memory("VmHWM") - base, "held": memory("VmRSS") - base}
    held = [*model.parameters(), *(v for s in optimizer.state.values() for v in s.values())]
    found |= {"rank": dist.rank(), "state": sum(local_part(one).nbytes for one in held)}
    print(json.dumps(found), flush=True)


def run(gigabytes: float, folder: str, layout: str) -> list[dict[str, int]]:
    """Return what each process printed."""
    command = [__file__, "--gigabytes", str(gigabytes), "--folder", folder, "--layout", layout]
    if LAYOUTS[layout]:
        start = ["-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone"]
        command = [*start, *command]
    done = subprocess.run([sys.executable, *command], stdout=subprocess.PIPE, text=True, check=True)
    return [json.loads(row) for row in done.stdout.splitlines() if row.startswith("{")]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gigabytes", type=float, default=1.0, help="size of the state")
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    parser.add_argument("--layout", choices=LAYOUTS, default="one process", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.folder is not None:
        work(options.gigabytes, options.folder, options.layout)
        return
    with tempfile.TemporaryDirectory() as folder:
        run(options.gigabytes, folder, "one process")
        for layout in LAYOUTS:
            for row in sorted(run(options.gigabytes, folder, layout), key=lambda row: row["rank"]):
                first, again, held = (row[key] / row["state"] for key in ("first", "again", "held"))
                print(
                    f"{layout}, rank {row['rank']}: state {row['state'] / 1e6:.0f} MB, peak of the "
                    f"first load {first:.2f} × that, of another {again:.2f}, after it {held:.2f}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
