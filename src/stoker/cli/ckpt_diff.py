"""``stoker ckpt diff``: what differs between two checkpoints."""

import argparse
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

from stoker.checkpoint.load import read_own
from stoker.cli.ckpt_compare import Difference, differences
from stoker.cli.ckpt_contents import Contents
from stoker.cli.ckpt_find import one_in
from stoker.cli.main import FAILED, OK
from stoker.config.text import ConfigError

_COUNTED = ("step", "epoch", "samples", "metrics")
"""What the values of a run repeat of its info."""


def diff(options: argparse.Namespace) -> int:
    """Print what differs."""
    if options.top < 1:
        raise ConfigError(f"--top is at least 1, got {options.top}")
    first, second = (one_in(Path(path)) for path in (options.first, options.second))
    a, b = (Contents.read(path, verify=True) for path in (first, second))
    found = _sections(a, b)
    if not any(found.values()):
        print("no difference")
        return OK
    print(f"A: {first}\nB: {second}")
    for name, rows in found.items():
        _print(name, rows, options.top)
    return FAILED


def _sections(a: Contents, b: Contents) -> dict[str, list[Difference]]:
    one, other = _described(a), _described(b)
    found = {name: list(differences(one[name], other[name])) for name in one}
    rest = list(chain(differences(_state(a), _state(b)), _of_ranks(a, b)))
    found["values"] = [row for row in rest if not row.of_tensors]
    tensors = [row for row in rest if row.of_tensors]
    found["tensors"] = sorted(tensors, key=_rank)
    return found


def _rank(row: Difference) -> tuple[bool, bool, float]:
    """The model first, random states last; within each, the largest difference first."""
    return (not row.path.startswith("model."), row.path.startswith("rank "), -row.size)


def _described(contents: Contents) -> dict[str, Any]:
    """What the manifest tells, by section."""
    manifest = contents.manifest
    info = dict(manifest.info)
    metrics, settings = info.pop("metrics", {}), info.pop("settings", {})
    repeated = {name: value for name, value in metrics.items() if name not in ("epoch", "step")}
    counters = {"step": manifest.step, **info, "processes": manifest.world_size}
    return {"counters": counters, "metrics": repeated, "settings": settings}


def _state(contents: Contents) -> Any:
    state = contents.load(contents.values)
    if isinstance(state, dict) and isinstance(state.get("run"), dict):
        run = {name: value for name, value in state["run"].items() if name not in _COUNTED}
        return state | {"run": run}
    return state


def _of_ranks(a: Contents, b: Contents) -> Iterator[Difference]:
    """What differs in what belonged to each process alone; other numbers of them are told above."""
    for rank in range(min(a.manifest.world_size, b.manifest.world_size)):
        one, other = (read_own(side.path, side.manifest, rank) for side in (a, b))
        yield from differences(one, other, f"rank {rank}")


def _print(name: str, rows: list[Difference], top: int) -> None:
    if not rows:
        return
    print(f"{name}: {len(rows)} {'differs' if len(rows) == 1 else 'differ'}")
    shown = rows[:top]
    width = max(len(row.path) for row in shown)
    for row in shown:
        print(f"  {row.path:<{width}}  {row.text}")
    if len(rows) > top:
        print(f"  … and {len(rows) - top} more (--top {len(rows)})")
