"""``stoker ckpt diff``: compare two checkpoints value by value and tensor by tensor."""

import argparse
import math
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch import Tensor

from stoker.checkpoint.format.validation import reading
from stoker.checkpoint.read.load import read_own
from stoker.cli.ckpt.contents import Contents
from stoker.cli.ckpt.find import find_one
from stoker.cli.common import FAILED, OK, given_path
from stoker.cli.output import emit
from stoker.core.errors import ConfigError

_LONG = 8
"""Longer lists of plain values are reported as one difference."""


@dataclass(frozen=True)
class Difference:
    """One place where two states differ.

    Args:
        path: the keys that lead to it.
        text: a description.
        of_tensors: whether a tensor differs.
        size: the sort key; infinite for a value that only one state has.
    """

    path: str
    text: str
    of_tensors: bool = False
    size: float = math.inf


def differences(first: Any, second: Any, path: str = "") -> Iterator[Difference]:
    """Yield all bitwise differences: NaN equals NaN, and 0.0 differs from -0.0."""
    if isinstance(first, np.ndarray):
        first = _as_tensor(first)
    if isinstance(second, np.ndarray):
        second = _as_tensor(second)
    if isinstance(first, Tensor) and isinstance(second, Tensor):
        yield from _of_tensors(first, second, path)
    elif isinstance(first, Mapping) and isinstance(second, Mapping):
        yield from _of_mappings(first, second, path)
    elif _is_list(first) and _is_list(second):
        yield from _of_lists(first, second, path)
    elif not _same(first, second):
        text = f"{_formatted(first)} → {_formatted(second)}"
        yield Difference(path, text, isinstance(first, Tensor))


def _of_mappings(
    first: Mapping[Any, Any], second: Mapping[Any, Any], path: str
) -> Iterator[Difference]:
    for key in [*first, *(key for key in second if key not in first)]:
        below = ".".join(filter(None, (path, str(key))))  # a single optimizer has no name
        if key not in second:
            yield _only("A", first[key], below)
        elif key not in first:
            yield _only("B", second[key], below)
        else:
            yield from differences(first[key], second[key], below)


def _of_lists(first: Sequence[Any], second: Sequence[Any], path: str) -> Iterator[Difference]:
    if type(first) is not type(second):
        yield Difference(path, f"a {type(first).__name__} → a {type(second).__name__}")
    if len(first) != len(second):
        yield Difference(path, f"{len(first)} items → {len(second)} items")
    pairs = list(zip(first, second, strict=False))
    if len(pairs) > _LONG and all(map(_is_plain, (*first, *second))):
        count = sum(not _same(one, other) for one, other in pairs)
        if count:
            yield Difference(path, f"{count} of {len(pairs)} items differ")
        return
    for index, (one, other) in enumerate(pairs):
        yield from differences(one, other, f"{path}.{index}")


def _of_tensors(first: Tensor, second: Tensor, path: str) -> Iterator[Difference]:
    if first.shape != second.shape:
        text = f"shape {list(first.shape)} → {list(second.shape)}"
        yield Difference(path, text, of_tensors=True)
    elif first.dtype != second.dtype:
        yield Difference(path, f"dtype {_dtype(first)} → {_dtype(second)}", of_tensors=True)
    elif first.numel():
        differ = (_bytes(first) != _bytes(second)).any(dim=1)
        if count := int(differ.sum()):
            largest = _largest(first.reshape(-1)[differ], second.reshape(-1)[differ])
            text = f"{count} of {first.numel()} elements differ, max abs difference {largest:.4g}"
            size = math.inf if math.isnan(largest) else largest
            yield Difference(path, text, of_tensors=True, size=size)


def _largest(first: Tensor, second: Tensor) -> float:
    wide = torch.complex128 if first.is_complex() else torch.float64
    return float((first.to(wide) - second.to(wide)).abs().max())


def _bytes(tensor: Tensor) -> Tensor:
    """Return the bytes of a tensor, one row per element."""
    flat = tensor.detach().contiguous().reshape(-1)
    return flat.view(torch.uint8).reshape(tensor.numel(), tensor.itemsize)


def _as_tensor(array: np.ndarray[Any, Any]) -> Any:
    """Return a numpy array as a tensor, or as a list if torch lacks its type."""
    try:
        return torch.from_numpy(array.copy())
    except TypeError:
        return array.tolist()


def _only(where: str, value: Any, path: str) -> Difference:
    return Difference(path, f"only in {where}: {_formatted(value)}", isinstance(value, Tensor))


def _is_list(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str | bytes)


def _is_plain(value: Any) -> bool:
    return value is None or isinstance(value, int | float | str)


def _same(first: Any, second: Any) -> bool:
    if isinstance(first, Tensor) or isinstance(second, Tensor) or type(first) is not type(second):
        return False
    if isinstance(first, float):
        both_nan = math.isnan(first) and math.isnan(second)
        return both_nan or (first == second and math.copysign(1, first) == math.copysign(1, second))
    return bool(first == second)


def _formatted(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"a tensor {list(value.shape)} {_dtype(value)}"
    if isinstance(value, Mapping | Set) or _is_list(value):
        return f"{len(value)} items" if value else "nothing"
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}…"


def _dtype(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


_IN_INFO = ("step", "epoch", "samples", "metrics")
"""Values of ``run`` that the manifest's info repeats."""


def diff(options: argparse.Namespace) -> int:
    """Print the differences."""
    if options.top < 1:
        raise ConfigError(f"--top must be at least 1, got {options.top}")
    first, second = (find_one(given_path(path)) for path in (options.first, options.second))
    a, b = (Contents.read(path, verify=True) for path in (first, second))
    with reading(f"one of '{first}' and '{second}'"):
        found = _sections(a, b)
    same = not any(found.values())
    lines = ["no difference"] if same else [f"A: {first}", f"B: {second}"]
    for name, rows in found.items():
        lines += _lines(name, rows, options.top)
    listed = [
        {"section": name, "path": row.path, "text": row.text}
        for name, rows in found.items()
        for row in rows[: options.top]
    ]
    counts = {name: len(rows) for name, rows in found.items()}
    emit("diff", lines, a=first, b=second, same=same, counts=counts, differences=listed)
    return OK if same else FAILED


def _sections(a: Contents, b: Contents) -> dict[str, list[Difference]]:
    one, other = _described(a), _described(b)
    found = {name: list(differences(one[name], other[name])) for name in one}
    rest = list(chain(differences(_state(a), _state(b)), _of_ranks(a, b)))
    found["values"] = [row for row in rest if not row.of_tensors]
    tensors = [row for row in rest if row.of_tensors]
    found["tensors"] = sorted(tensors, key=_rank)
    return found


def _rank(row: Difference) -> tuple[bool, bool, float]:
    """Sort the model first and random states last; within each, the largest difference first."""
    return (not row.path.startswith("model."), row.path.startswith("rank "), -row.size)


def _described(contents: Contents) -> dict[str, Any]:
    """Return the values of the manifest by section."""
    manifest = contents.manifest
    info = dict(manifest.info)
    metrics, settings = info.pop("metrics", {}), info.pop("settings", {})
    repeated = {name: value for name, value in metrics.items() if name not in ("epoch", "step")}
    counters = {"step": manifest.step, **info, "processes": manifest.world_size}
    return {"counters": counters, "metrics": repeated, "settings": settings}


def _state(contents: Contents) -> Any:
    state = contents.load(contents.values)
    if isinstance(state, dict) and isinstance(state.get("run"), dict):
        run = {name: value for name, value in state["run"].items() if name not in _IN_INFO}
        return state | {"run": run}
    return state


def _of_ranks(a: Contents, b: Contents) -> Iterator[Difference]:
    """Yield differences in the per-rank state of the ranks that both checkpoints have."""
    for rank in range(min(a.manifest.world_size, b.manifest.world_size)):
        one, other = (read_own(side.path, side.manifest, rank) for side in (a, b))
        yield from differences(one, other, f"rank {rank}")


def _lines(name: str, rows: list[Difference], top: int) -> list[str]:
    if not rows:
        return []
    shown = rows[:top]
    width = max(len(row.path) for row in shown)
    more = [f"  … and {len(rows) - top} more (--top {len(rows)})"] if len(rows) > top else []
    return [
        f"{name}: {len(rows)} {'differs' if len(rows) == 1 else 'differ'}",
        *(f"  {row.path:<{width}}  {row.text}" for row in shown),
        *more,
    ]
