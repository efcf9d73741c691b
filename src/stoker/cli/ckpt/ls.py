"""``stoker ckpt ls`` and ``verify``: list checkpoints and check that they are valid."""

import argparse
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from stoker.checkpoint import CheckpointError
from stoker.checkpoint.format.manifest import Manifest, metrics_in
from stoker.checkpoint.format.names import step_in_name
from stoker.checkpoint.read.load import verify_checkpoint
from stoker.checkpoint.retention import Best
from stoker.cli.ckpt.find import add_contents, find_all, format_age, saved_at, size_of
from stoker.cli.common import FAILED, OK, given_path
from stoker.cli.output import emit, note
from stoker.events.writers.console import format_table
from stoker.hooks.base.monitor import Monitor
from stoker.storage import format_size

_COLUMNS = 6
"""The number of metrics shown."""


@dataclass
class _Row:
    path: Path
    step: int
    size: int
    saved: float
    faults: list[str]
    stored: int
    info: dict[str, Any] = field(default_factory=dict)
    best: list[str] = field(default_factory=list)

    @property
    def metrics(self) -> dict[str, float]:
        return {
            n: value for n, value in metrics_in(self.info).items() if n not in ("epoch", "step")
        }


def ls(options: argparse.Namespace) -> int:
    """List checkpoints."""
    path = given_path(options.path)
    found = find_all(path)
    known: dict[Any, int] = {}
    rows = [row for one in found if (row := _row(one, known, quick=options.quick)) is not None]
    _mark_best(rows)
    lines = _table(rows, valid="sizes match" if options.quick else "valid")
    for left in sorted(found[0].parent.glob(".step-*.partial-*")):
        lines.append(f"{left.name}: a save that is in progress or was interrupted")
    if not options.json:
        emit("checkpoint", lines)
        return OK
    for row in rows:
        emit("checkpoint", **_plain(row))
    return OK


def verify(options: argparse.Namespace) -> int:
    """Check every byte."""
    paths = find_all(given_path(options.path))
    damaged = 0
    for path in paths:
        faults = verify_checkpoint(path)
        if not path.exists():
            note(f"{path.name}: removed in the meantime by a running training")
            continue
        damaged += bool(faults)
        lines = [f"{path.name}: {fault}" for fault in faults]
        if not faults:
            count = len(Manifest.read(path).files)
            lines = [f"{path.name}: valid ({count} files, {format_size(size_of(path))})"]
        emit("verified", lines, path=path, valid=not faults, faults=faults)
    if damaged:
        note(f"{damaged} of {len(paths)} checkpoints {'is' if damaged == 1 else 'are'} damaged")
    return FAILED if damaged else OK


def _row(path: Path, known: dict[Any, int], *, quick: bool) -> _Row | None:
    """Return a row about a checkpoint, or None if a running training has removed it.

    Args:
        path: the checkpoint.
        known: the contents of older ones; those of this one are added.
        quick: check the sizes of its files only.
    """
    faults = verify_checkpoint(path, quick=quick)
    named, info = step_in_name(path.name), {}
    step = -1 if named is None else named
    try:
        manifest = Manifest.read(path)
        step, info = manifest.step, manifest.info
    except CheckpointError:
        pass  # already among the faults
    try:
        size, saved = size_of(path), saved_at(path)
        stored = add_contents(path, known)
        return _Row(path, step, size, saved, faults, stored, info)
    except FileNotFoundError:
        return None


def _mark_best(rows: list[_Row]) -> None:
    """Mark the best row of each metric whose name shows which value is best."""
    valid = [row for row in rows if not row.faults]
    for name in {name for row in valid for name in row.metrics}:
        try:
            best = Best(name, Monitor(name).mode)
        except ValueError:
            continue
        values = [
            (value, row.step, row) for row in valid if (value := best.value(row.info)) is not None
        ]
        if len(values) > 1:
            min(values, key=lambda one: one[:2])[2].best.append(name)


def _plain(row: _Row) -> dict[str, Any]:
    return {
        "path": str(row.path),
        "step": row.step,
        "epoch": row.info.get("epoch"),
        "samples": row.info.get("samples"),
        "size": row.size,
        "stored": row.stored,
        "saved": datetime.fromtimestamp(row.saved, UTC).isoformat(timespec="seconds"),
        "metrics": row.metrics,
        "best": sorted(row.best),
        "faults": row.faults,
    }


def _table(rows: list[_Row], valid: str) -> list[str]:
    names = list(dict.fromkeys(name for row in rows for name in row.metrics))
    names.sort(key=lambda name: not name.startswith("val"))  # validation metrics first
    shown = names[:_COLUMNS]
    now = time.time()
    shares = any(row.stored < row.size for row in rows)
    table = [["step", "epoch", "size", *(["stored"] if shares else []), "age", *shown, ""]]
    for row in rows:
        state = valid if not row.faults else f"damaged: {'; '.join(row.faults)}"
        results = [_result(row, name) for name in shown]
        epoch = str(row.info.get("epoch", "-"))
        age = format_age(now - row.saved)
        sizes = [format_size(row.size), *([format_size(row.stored)] if shares else [])]
        table.append([str(row.step), epoch, *sizes, age, *results, state])
    lines = [format_table(table, left=[len(table[0]) - 1])]
    if any(row.best for row in rows):
        lines.append("* best of the listed checkpoints")
    if len(names) > len(shown):
        lines.append(f"{len(names) - len(shown)} more metrics: --json")
    return lines


def _result(row: _Row, name: str) -> str:
    if name not in row.metrics:
        return "- "
    return f"{row.metrics[name]:.4g}{'*' if name in row.best else ' '}"
