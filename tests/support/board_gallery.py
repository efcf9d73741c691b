"""Run folders of all kinds, for the pages of the board and the report, and for their pictures."""

import json
import math
import os
import random
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from stoker.rundir import files
from stoker.rundir.states import ending_of

STAMP = "2026-01-01 00:00:00"
ODD_NAME = "größer 試験 – versuch 2"
LONG_NAME = "sweep-lr=0.00030000000000000003-width=4096-augment=randaugment-seed=12345-try-2"
MANY_METRICS = [
    *(f"val/{data}/{metric}/{size}" for data in ("coco", "lvis", "o365")
      for metric in ("mAP", "recall") for size in ("small", "medium", "large", "all")),
    *(f"train/loss/{part}" for part in ("box", "class", "mask", "dfl", "aux/enc", "aux/dec")),
    *(f"layers/block{block}/{what}" for block in range(12) for what in ("rms", "grad_rms")),
    *("time/step", "time/data", "samples/s", "memory/host", "lr", "grad_norm"),
]  # fmt: skip


def write_metrics(folder: Path, rows: Sequence[dict[str, Any]]) -> None:
    (folder / files.METRICS).write_text("".join(json.dumps(row) + "\n" for row in rows))


def curve_rows(
    steps: int, began: float, *, seed: int = 0, rate: float = 1.0, every: int = 10
) -> list[dict[str, Any]]:
    """Rows as a classifier writes them: a noisy loss that falls, and a validation per epoch."""
    draw, rows = random.Random(seed), []
    for step in range(every, steps + 1, every):
        head = {"step": step, "epoch": (step - 1) // 100, "samples": 64 * step}
        head["time"] = began + 0.05 * step
        loss = 0.12 + 2.2 * math.exp(-rate * step / 250) + draw.gauss(0, 0.03)
        lr = 0.05 * rate * (1 + math.cos(math.pi * step / steps))
        pace = {"time/step": 0.05 + draw.random() / 200, "time/data": 0.004, "samples/s": 1270.0}
        rows.append(head | {"train/loss": loss, "lr": lr, "grad_norm": 0.4 + loss / 2, **pace})
        if step % 100 == 0:
            val = 0.2 + 2.1 * math.exp(-rate * step / 260) + 0.0001 * rate * step
            score = 0.97 - 0.6 * math.exp(-rate * step / 220) - 0.00002 * rate * step
            rows.append(head | {"epoch": step // 100, "val/loss": val, "val/accuracy": score})
    return rows


def ledger_line(attempt: str, when: float, step: int, spent: Sequence[float], **more: Any) -> str:
    kinds = ("startup", "train", "data", "save", "eval", "other")
    seconds = dict(zip(kinds, spent, strict=True))
    return json.dumps({"time": when, "attempt": attempt, "step": step, **more, **seconds}) + "\n"


def simple_run(
    root: Path,
    name: str,
    *,
    steps: int = 600,
    config: str = "",
    end: str | None = "finished",
    seed: int = 0,
    rate: float = 1.0,
    total: int | None = None,
) -> Path:
    """A run of one attempt that wrote until a minute ago, or just now if it has no end."""
    folder = root / name
    folder.mkdir(parents=True)
    began = time.time() - 0.05 * steps - (60 if end else 2)
    rows = curve_rows(steps, began, seed=seed, rate=rate)
    write_metrics(folder, rows)
    (folder / files.CONFIG).write_text(config or f"optimizer: {{lr: {0.1 * rate}}}\n")
    (folder / files.ENVIRONMENT).write_text('{"python": "3.11", "system": {"host": "node-7"}}\n')
    epochs = (total or steps) // 100
    log = [
        f"{STAMP} INFO epoch {k}/{epochs}  step {100 * k}  train/loss 0.3  val/loss 0.2  5.1 s"
        for k in range(1, steps // 100 + 1)
    ]
    log += [f"{STAMP} INFO {end} (step {steps})"] if end and not end.startswith("the run") else []
    log += [f"{STAMP} ERROR {end}\nValueError: bad"] if end and end.startswith("the run") else []
    (folder / files.LOG).write_text("\n".join(log) + "\n")
    limits = {"epochs": epochs, "total_steps": total or steps}
    ran = 0.05 * steps
    lines = ledger_line("a", began, 0, (3, 0, 0, 0, 0, 0), event="begin", pid=1, **limits)
    spent = (3, 0.8 * ran, 0.08 * ran, 1, 0.1 * ran, 0.5)
    state, why = ("failed", "ValueError: bad") if (end or "").startswith("the run") else ending_of(
        None if end == "finished" else end)  # fmt: skip
    ended = {"event": "end", "end": state, "why": why} if end else {}
    lines += ledger_line("a", began + ran, steps, spent, **limits, **ended)
    (folder / files.LEDGER).write_text(lines)
    return folder


def many_metrics(root: Path) -> Path:
    folder = simple_run(root, "detector", steps=300)
    draw, began = random.Random(1), time.time() - 90
    rows = [
        {"step": step, "epoch": step // 100, "samples": step, "time": began + step / 10}
        | {name: draw.random() / (1 + i % 7) for i, name in enumerate(MANY_METRICS)}
        for step in range(5, 301, 5)
    ]
    write_metrics(folder, rows)
    return folder


def diverged(root: Path) -> Path:
    """Values that are not finite come as JSON allows them: as texts, and null."""
    folder = simple_run(root, "diverged", steps=300, end="the run failed at step 300")
    rows = curve_rows(300, time.time() - 90)
    for row in rows[len(rows) // 2 :]:
        row.update({name: "NaN" for name in ("train/loss", "val/loss") if name in row})
    for row in rows[-10::2]:
        row.update({"grad_norm": "Infinity"} if "grad_norm" in row else {})
    rows.append(rows[-1] | {"train/loss": "NaN", "grad_norm": "Infinity", "val/odd": None})
    write_metrics(folder, rows)
    return folder


def restarted(root: Path, name: str = "restarted twice") -> Path:
    """Killed at step 250, resumed at 200 by the launcher, preempted at 420, resumed, finished."""
    folder = simple_run(root, name, steps=600, seed=3, rate=0.8)
    began = time.time() - 7200
    rows = [
        row | {"time": began + 5 + row["step"] / 5 + 1800 * (row["step"] > 200)
               + 1200 * (row["step"] > 420)}
        for row in curve_rows(600, began, seed=3, rate=0.8)
    ]  # fmt: skip
    write_metrics(folder, rows)
    limits = {"epochs": 6, "total_steps": 600}
    two, three = began + 1800, began + 3000
    lines = [
        ledger_line("a", began + 8, 0, (8, 0, 0, 0, 0, 0), event="begin", pid=11, **limits),
        ledger_line("a", began + 58, 250, (8, 41, 4, 1, 4, 0), **limits),
        ledger_line("b", two + 12, 200, (12, 0, 0, 0, 0, 0), event="begin", pid=12, restarts=1,
                    **limits),
        ledger_line("b", two + 58, 420, (12, 36, 3, 2, 4, 1), event="end", end="preempted",
                    why="preempted by SIGTERM", **limits),
        ledger_line("c", three + 9, 420, (9, 0, 0, 0, 0, 0), event="begin", pid=13, restarts=2,
                    **limits),
        ledger_line("c", three + 50, 600, (9, 32, 4, 2, 3, 0), event="end", end="finished",
                    **limits),
    ]  # fmt: skip
    (folder / files.LEDGER).write_text("".join(lines))
    return folder


def killed(root: Path) -> Path:
    folder = simple_run(root, "killed", steps=200, end=None, total=600)
    for path in folder.iterdir():
        os.utime(path, (time.time() - 7200,) * 2)
    return folder


def without_metrics(root: Path) -> Path:
    folder = simple_run(root, "without metrics", steps=100)
    (folder / files.METRICS).unlink()
    return folder


def script_record(lr: float, width: int, note: str = "baseline") -> str:
    """The ``config.yaml`` of a script, with parameters of its own."""
    return (
        f"recorded_by: train.py\nparams: {{lr: {lr}, width: {width}, note: '{note}'}}\n"
        "run: {epochs: 6, max_steps: null, seed: 1, checkpoint: {best: val/accuracy, mode: max}}\n"
        f"model: {{type: MLP, fc.out_features: {width}, fc.weight: 'float32[{width},4]'}}\n"
        f"optimizer: {{type: SGD, lr: {lr}, params: '2 parameters #{width:016x}'}}\n"
    )


def make_gallery(root: Path) -> Path:
    """Fill a folder with runs of every kind, and return it."""
    root.mkdir(parents=True, exist_ok=True)
    many_metrics(root)
    diverged(root)
    restarted(root)
    killed(root)
    without_metrics(root)
    early = "early stopping: val/loss has not improved for 3 validations"
    simple_run(
        root, ODD_NAME, config=script_record(0.1, 64), end=early, seed=1, steps=500, total=600
    )
    simple_run(root, LONG_NAME, config=script_record(0.3, 4096, "x" * 3000), seed=2, rate=1.6)
    simple_run(root, "pruned trial", config=script_record(0.9, 8), steps=100, total=600,
               end="pruned at val/loss 1.7", seed=4)  # fmt: skip
    simple_run(root, "still running", steps=300, end=None, total=600, seed=5, rate=1.3)
    return root
