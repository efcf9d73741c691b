"""Run what a machine without GPUs cannot test, and write a report: parity, reshard, kill, speed.

    python benchmarks/gpu_day.py --device cuda --processes 8 --output gpu-day
    python benchmarks/gpu_day.py --device cpu --quick

* parity: weights after a few steps in float64, in every layout, against one process
* reshard: a run that stops in one layout and continues in another, against one process
* kill: SIGKILL of the last rank, the same command again, and the bits of an undisturbed run
* speed: milliseconds per step, with the hand-written loop of torch where there is one

The folder gets ``report.md`` and ``report.json``. The exit code is 1 if a check failed.
"""

import argparse
import json
import os
import platform
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from stoker import Engine, Hook, Layout, Run, Trainer, hooks, seed_all
from stoker.core import dist
from stoker.nn import Transformer

LIMIT = 1e-10
STEPS = 6

TWO = {
    "replicate=2": Layout(replicate=2),
    "shard=2": Layout(shard=2),
}
MORE = {
    "tensor=2": Layout(tensor=2),
    "tensor=2, sequence and loss": Layout(tensor=2, sequence_parallel=True, loss_parallel=True),
    "context=2": Layout(context=2),
    "pipeline=2": Layout(pipeline=2),
}
FOUR = {
    "replicate=2, shard=2": Layout(replicate=2, shard=2),
    "shard=2, tensor=2": Layout(shard=2, tensor=2),
    "pipeline=2, replicate=2": Layout(pipeline=2, replicate=2),
    "context=2, shard=2": Layout(context=2, shard=2),
}


def layouts(processes: int, *, quick: bool) -> dict[str, Layout]:
    """Return the layouts for a number of processes, with copies in place of unused ones."""
    found = dict(TWO)
    if not quick:
        found |= MORE | (FOUR if processes >= 4 else {})
    scaled = {}
    for name, layout in found.items():
        copies = processes // layout.processes
        only_copies = layout.processes == layout.replicate
        if copies > 1 and layout.context > 1 and layout.shard > 1:
            continue  # three ways with context are not supported
        size = layout.replicate * copies
        shown = f"replicate={size}" if only_copies else f"{name}, × {copies}"
        scaled[name if copies == 1 else shown] = replace(layout, replicate=size)
    return scaled


# One training


def make(width: int, dtype: torch.dtype) -> Transformer:
    seed_all(1)
    return Transformer(64, 32, width=width, layers=4, heads=4).to(dtype)


def step(engine: Engine, tokens: Tensor) -> Tensor:
    scores = engine(tokens)
    loss: Tensor = engine.criterion(scores.flatten(0, 1), tokens.flatten())
    return loss


class Times(Hook):
    """The seconds of every step, with the device synchronized, so that they are real."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    def before_step(self, run: Run) -> None:
        synchronize()
        self._begun = time.perf_counter()

    def after_step(self, run: Run) -> None:
        synchronize()
        self.seconds.append(time.perf_counter() - self._begun)


class Kill(Hook):
    """Kills the last rank once, in the middle of the run."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def after_step(self, run: Run) -> None:
        is_last = dist.rank() == dist.world_size() - 1
        if run.step == STEPS // 2 and is_last and not self.marker.exists():
            self.marker.touch()
            os.kill(os.getpid(), signal.SIGKILL)


def synchronize() -> None:
    if torch.accelerator.is_available():  # untested without one
        torch.accelerator.synchronize()


def train(
    layout: Layout | None,
    device: str,
    *,
    steps: int = STEPS,
    folder: Path | None = None,
    more: tuple[Hook, ...] = (),
    width: int = 32,
    dtype: torch.dtype = torch.float64,
) -> dict[str, Tensor]:
    """Train in a layout, or alone, and return the complete weights."""
    model = make(width, dtype)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    engine = Engine(
        model, optimizer, nn.CrossEntropyLoss(), layout=layout, clip_norm=1.0, device=device
    )
    seed_all(2)
    data = torch.randint(64, (8 * STEPS, 32), generator=torch.Generator().manual_seed(3))
    loader = torch.utils.data.DataLoader(data, batch_size=8 // engine.data_shard.world_size)
    saves = [hooks.Checkpoint("1st")] if folder is not None else []
    trainer = Trainer(engine, [*saves, *more], step=step, run_dir=folder, seed=4)
    trainer.fit(loader, max_steps=steps)
    return engine.weights()


def difference(found: dict[str, Tensor], expected: dict[str, Tensor]) -> float:
    if found.keys() != expected.keys():
        return float("inf")
    return max(float((found[name] - value).abs().max()) for name, value in expected.items())


# The matrices, within connected processes


def parity(options: argparse.Namespace, expected: dict[str, Tensor]) -> Iterator[dict[str, Any]]:
    for name, layout in layouts(options.processes, quick=options.quick).items():
        yield checked("parity", name, lambda layout=layout: train(layout, options.device), expected)


def reshard(options: argparse.Namespace, expected: dict[str, Tensor]) -> Iterator[dict[str, Any]]:
    known = list(layouts(options.processes, quick=options.quick).items())
    for (one, first), (other, second) in zip(known, known[1:] + known[:1], strict=True):
        folder = Path(options.output) / "runs" / f"{one} to {other}"

        def resumed(first: Layout = first, second: Layout = second, folder: Path = folder) -> Any:
            train(first, options.device, steps=STEPS // 2, folder=folder)
            return train(second, options.device, folder=folder)

        yield checked("reshard", f"{one} → {other}", resumed, expected)


def checked(
    matrix: str, name: str, work: Callable[[], dict[str, Tensor]], expected: dict[str, Tensor]
) -> dict[str, Any]:
    """Return the row of the report for a training; an error is a row, too."""
    try:
        found = difference(work(), expected)
    except Exception as error:  # the report goes on with the next layout
        return {"matrix": matrix, "case": name, "ok": False, "result": f"{error}"}
    return {"matrix": matrix, "case": name, "ok": found <= LIMIT, "result": f"{found:.1e}"}


def speed(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    width = 64 if options.quick else 1024
    size: dict[str, Any] = {"width": width, "dtype": torch.float32}
    for name, layout in layouts(options.processes, quick=options.quick).items():
        by_hand = HAND_WRITTEN.get(name.partition("=")[0]) if "," not in name else None
        rounds: dict[str, list[float]] = {"stoker": [], "hand": []}
        for _ in range(2 if options.quick else 5):  # in turn, so that both meet the same noise
            times = Times()
            train(layout, options.device, more=(times,), **size)
            rounds["stoker"] += times.seconds[1:]
            if by_hand is not None:
                rounds["hand"] += by_hand(options.device, width)[1:]
        medians = {k: statistics.median(v) * 1000 for k, v in rounds.items() if v}
        text = f"{medians['stoker']:.2f} ms per step"
        if "hand" in medians:
            text += f", {medians['stoker'] / medians['hand']:.3f} × hand-written"
        yield {"matrix": "speed", "case": name, "ok": True, "result": text, **medians}


def ddp(device: str, width: int) -> list[float]:
    from torch.nn.parallel import DistributedDataParallel

    return _by_hand(device, width, DistributedDataParallel)


def fsdp(device: str, width: int) -> list[float]:
    from torch.distributed.fsdp import fully_shard

    def wrap(model: Any) -> Any:
        for block in model.blocks:
            fully_shard(block)
        return fully_shard(model)

    return _by_hand(device, width, wrap)


HAND_WRITTEN = {"replicate": ddp, "shard": fsdp}


def _by_hand(device: str, width: int, wrap: Callable[[Any], Any]) -> list[float]:
    here = torch.device(device, torch.accelerator.current_device_index()) if device != "cpu" else ""
    model = wrap(make(width, torch.float32).to(here or "cpu"))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    rank, count, seconds = dist.rank(), dist.world_size(), []
    data = torch.randint(64, (8 * STEPS, 32), generator=torch.Generator().manual_seed(3))
    for batch in data.split(8):
        synchronize()
        begun = time.perf_counter()
        tokens = batch[rank::count].to(here or "cpu")
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten()).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        synchronize()
        seconds.append(time.perf_counter() - begun)
    return seconds


# Processes


def run_matrices(options: argparse.Namespace) -> None:
    """Run parity, reshard and speed as one of the connected processes; rank 0 writes the rows."""
    dist.connect(options.device)
    expected = torch.load(Path(options.output) / "alone.pt")
    rows = [*parity(options, expected), *reshard(options, expected), *speed(options)]
    if dist.is_main():
        (Path(options.output) / "matrices.json").write_text(json.dumps(rows))


def run_killed(options: argparse.Namespace) -> None:
    """Train in shards, and be killed in the first attempt; rank 0 writes the weights."""
    folder = Path(options.output)
    layout = Layout(shard=options.processes)
    plain = train(layout, options.device)
    killed = train(
        layout, options.device, folder=folder / "runs" / "killed", more=(Kill(folder / "killed"),)
    )
    if dist.is_main():
        same = all(torch.equal(killed[name], value) for name, value in plain.items())
        (folder / "killed.json").write_text(json.dumps(same))


def launch(options: argparse.Namespace, part: str) -> int:
    command = [
        *(sys.executable, "-m", "torch.distributed.run", "--standalone"),
        *("--nproc-per-node", str(options.processes), __file__, "--part", part),
        *("--device", options.device, "--processes", str(options.processes)),
        *("--output", str(options.output), *(["--quick"] if options.quick else [])),
    ]
    environment = {"OMP_NUM_THREADS": "1", **os.environ}
    return subprocess.run(command, env=environment, check=False).returncode


def kill_row(options: argparse.Namespace) -> dict[str, Any]:
    folder = Path(options.output)
    codes = [launch(options, "kill"), launch(options, "kill")]
    result = folder / "killed.json"
    same = result.exists() and json.loads(result.read_text())
    ok = codes[0] != 0 and codes[1] == 0 and bool(same)
    text = "same bits" if ok else f"exit codes {codes}, same bits: {same}"
    return {"matrix": "kill", "case": f"shard={options.processes}", "ok": ok, "result": text}


def environment(options: argparse.Namespace) -> dict[str, Any]:
    """Describe the machine."""
    found = {
        "date": time.strftime("%Y-%m-%d"),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "device": options.device,
        "processes": options.processes,
    }
    if torch.cuda.is_available():  # untested without one
        found["gpu"] = torch.cuda.get_device_name(0)
        found["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))
    return found


def write_report(folder: Path, machine: dict[str, Any], rows: list[dict[str, Any]]) -> None:
    lines = ["# A day with GPUs", "", *(f"- {name}: {value}" for name, value in machine.items())]
    for matrix in ("parity", "reshard", "kill", "speed"):
        lines += ["", f"## {matrix.capitalize()}", "", "| case | result | |", "|---|---|---|"]
        for row in (row for row in rows if row["matrix"] == matrix):
            text = row["result"].replace("|", "\\|").replace("\n", " ")
            lines.append(f"| {row['case']} | {text} | {'ok' if row['ok'] else '**failed**'} |")
    (folder / "report.md").write_text("\n".join(lines) + "\n")
    (folder / "report.json").write_text(json.dumps({"machine": machine, "rows": rows}, indent=1))


def day(options: argparse.Namespace) -> int:
    """Run everything and write the report; return the exit code."""
    folder = Path(options.output)
    folder.mkdir(parents=True, exist_ok=True)
    torch.save(train(None, options.device), folder / "alone.pt")
    code = launch(options, "matrices")
    written = folder / "matrices.json"
    rows = json.loads(written.read_text()) if written.exists() else []
    if code:
        result = f"exit code {code}"
        rows.append({"matrix": "parity", "case": "all", "ok": False, "result": result})
    rows.append(kill_row(options))
    write_report(folder, environment(options), rows)
    failed = [row for row in rows if not row["ok"]]
    print(f"{folder / 'report.md'}: {len(rows) - len(failed)} ok, {len(failed)} failed")
    return 1 if failed else 0


def main() -> None:
    """Run a part in a started process, or everything."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    count = torch.accelerator.device_count() if torch.accelerator.is_available() else 2
    parser.add_argument("--device", default="cuda", help="cuda, or cpu to try the script")
    parser.add_argument("--processes", type=int, default=max(count, 2))
    parser.add_argument("--quick", action="store_true", help="two layouts and a small model")
    parser.add_argument("--output", default=None, help="an empty folder for the report")
    parser.add_argument("--part", choices=("matrices", "kill"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.output = options.output or tempfile.mkdtemp(prefix="gpu-day-")
    if options.part is not None:
        {"matrices": run_matrices, "kill": run_killed}[options.part](options)
        return
    if options.device == "cuda" and not torch.cuda.is_available():
        raise SystemExit("there is no CUDA device: pass --device cpu --quick to try the script")
    sys.exit(day(options))


if __name__ == "__main__":
    main()
