"""What a run was made from: its config, compared with others, and its environment."""

import math
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Sequence
from datetime import datetime
from enum import Enum
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from stoker.config.lazy import Lazy, children

ABSENT = object()
"""The value of a key in a config that does not have it."""

_DEEPEST = 30
_LONGEST_TEXT = 2000
_LONGEST_LIST = 200


class Difference(NamedTuple):
    """A key, and its value in every config; `ABSENT` where a config does not have it."""

    key: str
    values: list[Any]


def flatten(tree: Any, limit: int | None = None) -> dict[str, Any]:
    """Return the leaves of a tree by dotted keys; a list of plain values is one leaf.

    Args:
        tree: mappings, lists and `Lazy` nodes.
        limit: the largest number of leaves. Set it for a tree from a file that you do not trust;
            what is beyond the limit is left out.
    """
    found: dict[str, Any] = {}
    waiting: list[tuple[str, Any, int]] = [("", tree, 0)]
    while waiting and (limit is None or len(found) < limit):
        path, value, depth = waiting.pop()
        inner = _children(value)
        if inner and depth < _DEEPEST and (limit is None or len(waiting) < limit):
            below = [(f"{path}.{_text(key)}" if path else _text(key), v) for key, v in inner]
            waiting += [(key, one, depth + 1) for key, one in reversed(below[:limit])]
        elif path:
            found[path] = value
    return found


def _children(value: Any) -> list[tuple[Any, Any]]:
    if isinstance(value, list | tuple):
        nested = any(isinstance(one, dict | list | tuple) for one in value[:_LONGEST_LIST])
        return list(enumerate(value)) if nested else []
    target = [("_target_", value.target)] if isinstance(value, Lazy) else []
    return target + list(children(value))


def differences(configs: Sequence[dict[str, Any]]) -> list[Difference]:
    """Return the keys of flat configs whose values differ, sorted."""
    found = []
    for key in sorted({key for config in configs for key in config}):
        values = [config.get(key, ABSENT) for config in configs]
        if not all(_is_same(value, values[0]) for value in values[1:]):
            found.append(Difference(key, values))
    return found


def _is_same(one: Any, other: Any) -> bool:
    return bool(one == other) or repr(one) == repr(other)


def format_value(value: Any) -> str:
    """Return a value as a config spells it; an empty string for `ABSENT`."""
    if value is ABSENT:
        return ""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    return str(value)


def plain_value(value: Any) -> str | int | float | bool | None:
    """Return a leaf as JSON can hold it, of bounded length, whatever it is."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, int) and not isinstance(value, Enum):
        return int.__index__(value) if abs(value) < 2**53 else _text(value)
    if isinstance(value, float):
        return float.__float__(value) if math.isfinite(value) else str(value)
    if isinstance(value, list):
        shown = ["…" if _children(one) else plain_value(one) for one in value[:_LONGEST_LIST]]
        parts = [format_value(one) for one in shown]
        more = ["…"] if len(value) > _LONGEST_LIST else []
        return f"[{', '.join(parts + more)}]"[:_LONGEST_TEXT]
    if isinstance(value, dict):
        return "…" if value else "{}"
    return _text(value)


def _text(value: Any) -> str:
    try:
        text = str(value)
    except Exception:  # an integer of thousands of digits, a tree in itself, a broken __str__
        return "…"
    return text.encode("utf-8", "replace").decode()[:_LONGEST_TEXT]


_PACKAGES = ("stoker", "torch", "numpy", "torchmetrics", "safetensors", "omegaconf")
_VARIABLES = ("CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS", "PYTHONHASHSEED", "SLURM_JOB_ID")
_LONGEST_DIFF = 1_000_000


def environment() -> dict[str, Any]:
    """Return versions, hardware, git state and the command line."""
    return {
        "time": datetime.now().astimezone().isoformat(timespec="seconds"),
        "command": sys.argv,
        "folder": str(Path.cwd()),
        "python": platform.python_version(),
        "packages": {name: _version(name) for name in _PACKAGES},
        "system": {
            "host": platform.node(),
            "platform": "-".join((platform.system(), platform.release(), platform.machine())),
            "cpus": os.cpu_count(),
            "threads": torch.get_num_threads(),
            "memory_gib": _memory_gib(),
            "accelerators": _accelerators(),
        },
        "variables": {name: os.environ[name] for name in _VARIABLES if name in os.environ},
        "git": git_state(),
    }


def git_state() -> dict[str, Any] | None:
    """Return the current commit and the diff against it, None outside a repository."""
    commit = _git("rev-parse", "HEAD")
    if commit is None:
        return None
    diff = _git("diff", "HEAD") or ""
    return {
        "commit": commit.strip(),
        "dirty": bool((_git("status", "--porcelain") or "").strip()),
        "diff": diff if len(diff) <= _LONGEST_DIFF else diff[:_LONGEST_DIFF] + "\n… cut off\n",
    }


def _git(*arguments: str) -> str | None:
    if shutil.which("git") is None:
        return None
    done = subprocess.run(
        ["git", *arguments], capture_output=True, text=True, errors="replace", check=False
    )
    return done.stdout if done.returncode == 0 else None


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _memory_gib() -> float | None:
    try:
        pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, AttributeError, OSError):  # Windows
        return None
    return round(pages / 2**30, 1)


def _accelerators() -> list[str]:
    if not torch.accelerator.is_available():
        return []
    kind = torch.accelerator.current_accelerator()  # untested: no such device here
    return [f"{kind}:{index}" for index in range(torch.accelerator.device_count())]
