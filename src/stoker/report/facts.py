"""What a run folder tells, whatever state it is in.

Nothing here fails because of what a file holds: what cannot be read is said in `Facts.faults`.
"""

import json
import math
import struct
from array import array
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import yaml

from stoker.checkpoint.format.manifest import Manifest
from stoker.checkpoint.format.names import MANIFEST, step_in_name
from stoker.checkpoint.read.verify import verify_checkpoint
from stoker.core.errors import CheckpointError
from stoker.report.goodput import Goodput, goodput_of, read_ledger

T = TypeVar("T")

_HEAD = ("step", "epoch", "samples", "time")
_LARGEST = 1e15
_LOG_LINES = 40
_LOG_BYTES = 100_000


@dataclass
class Curve:
    """The numbers of one name, by step."""

    steps: "array[int]" = field(default_factory=lambda: array("q"))
    values: "array[float]" = field(default_factory=lambda: array("d"))

    def __len__(self) -> int:
        return len(self.steps)


@dataclass
class Saved:
    """A checkpoint: what is known of it, and what is wrong with it."""

    name: str
    step: int | None
    size: int
    faults: list[str]
    info: dict[str, Any]


@dataclass
class Weights:
    """The final weights: their number, kinds of numbers, and the size of their file."""

    count: int
    tensors: int
    dtypes: list[str]
    size: int


@dataclass
class Facts:
    """Everything a report says of one run."""

    path: Path
    name: str
    config: str | None = None
    settings: dict[str, Any] = field(default_factory=dict)
    environments: list[dict[str, Any]] = field(default_factory=list)
    curves: dict[str, Curve] = field(default_factory=dict)
    last: dict[str, float] = field(default_factory=dict)
    checkpoints: list[Saved] = field(default_factory=list)
    goodput: Goodput | None = None
    weights: Weights | None = None
    log: list[str] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)

    def read(self, file: str, how: Callable[[Path], T], nothing: T) -> T:
        """What ``how`` makes of a file of the folder; ``nothing`` where it is absent or broken."""
        try:
            return how(self.path / file)
        except (FileNotFoundError, NotADirectoryError):
            return nothing
        except OSError as error:
            self.faults.append(f"{file} cannot be read: {error.strerror}")
        except Exception as error:  # parsers raise many kinds for bytes that make no sense
            said = str(error).partition("\n")[0][:200]
            self.faults.append(f"{file} is broken: {said or type(error).__name__}")
        return nothing

    @property
    def state(self) -> str:
        """How the run stands, as far as its ledger tells."""
        if self.goodput is None or not self.goodput.attempts:
            return "unknown"
        last = self.goodput.attempts[-1]
        return last.end if last.end is not None else "under way, or killed"


def facts_of(path: Path, *, quick: bool = False) -> Facts:
    """Read a run folder.

    Args:
        path: the folder.
        quick: look at the sizes of checkpoint files, and not at every byte.
    """
    facts = Facts(path, path.absolute().name)
    facts.config = facts.read("config.yaml", _text, None)
    facts.settings = facts.read("config.yaml", _flat_yaml, {})
    environments = sorted(path.glob("env*.json"), key=lambda one: (len(one.name), one.name))
    for file in environments:
        found = facts.read(file.name, _json_object, None)
        facts.environments += [found] if found is not None else []
    facts.read("metrics.jsonl", lambda file: _read_curves(file, facts), None)
    facts.goodput = facts.read("ledger.jsonl", lambda file: _read_goodput(file, facts), None)
    facts.checkpoints = facts.read("checkpoints", lambda file: _checkpoints(file, quick), [])
    facts.weights = facts.read("model.safetensors", _weights, None)
    facts.log = facts.read("log.txt", _last_lines, [])
    return facts


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace")


def _flat_yaml(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = {}

    def visit(node: Any, name: str, depth: int) -> None:
        if depth > 30 or len(found) > 5000:
            raise ValueError("it is nested too deep, or too long")
        if isinstance(node, dict) and node:
            for key, value in node.items():
                visit(value, f"{name}.{key}" if name else str(key), depth + 1)
        elif isinstance(node, list) and any(isinstance(one, dict | list) for one in node):
            for index, value in enumerate(node):
                visit(value, f"{name}.{index}", depth + 1)
        else:
            found[name] = node

    tree = yaml.safe_load(path.read_text(encoding="utf-8"))
    if not isinstance(tree, dict):
        raise ValueError(f"it holds a {type(tree).__name__}, expected names and values")
    visit(tree, "", 0)
    return found


def _json_object(path: Path) -> dict[str, Any]:
    found = json.loads(path.read_bytes())
    if not isinstance(found, dict):
        raise ValueError(f"it holds a {type(found).__name__}, expected an object")
    return found


def _read_curves(path: Path, facts: Facts) -> None:
    broken = 0
    with path.open("rb") as file:
        for line in file:
            try:
                _take_row(json.loads(line), facts)
            except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
                broken += bool(line.strip())
    if broken:
        facts.faults.append(f"metrics.jsonl has {_lines(broken)} that cannot be read")


def _take_row(row: dict[str, Any], facts: Facts) -> None:
    step = row["step"]
    if type(step) is not int or not 0 <= step < _LARGEST:
        raise ValueError
    numbers = {str(name): float(value) for name, value in row.items() if name != "step"}
    facts.last["step"] = step
    for name, value in numbers.items():
        if name in _HEAD:
            facts.last[name] = value
            continue
        curve = facts.curves.setdefault(name, Curve())
        curve.steps.append(step)
        curve.values.append(value)


def _read_goodput(path: Path, facts: Facts) -> Goodput | None:
    attempts, broken = read_ledger(path)
    if broken:
        facts.faults.append(f"ledger.jsonl has {_lines(broken)} that cannot be read")
    return goodput_of(attempts) if attempts else None


def _lines(count: int) -> str:
    return f"{count} line{'s' if count > 1 else ''}"


def _checkpoints(folder: Path, quick: bool) -> list[Saved]:
    found = [_saved(path, quick) for path in folder.iterdir() if path.name.startswith("step-")]
    return sorted(found, key=lambda one: (one.step or 0, one.name))


def _saved(path: Path, quick: bool) -> Saved:
    step = step_in_name(path.name)
    try:
        faults = verify_checkpoint(path, quick=quick)
        info = Manifest.read(path).info if (path / MANIFEST).exists() else {}
        size = sum(file.stat().st_size for file in path.iterdir() if file.is_file())
    except CheckpointError:
        return Saved(path.name, step, 0, faults, {})
    except Exception as error:  # a manifest may hold anything
        return Saved(path.name, step, 0, [f"it cannot be read: {error}"[:200]], {})
    return Saved(path.name, step, size, faults, info if isinstance(info, dict) else {})


def _weights(path: Path) -> Weights:
    size = path.stat().st_size
    with path.open("rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        if length > size - 8:
            raise ValueError("its header is longer than the file")
        header = json.loads(file.read(length))
    tensors = [entry for name, entry in header.items() if name != "__metadata__"]
    count = sum(math.prod(int(side) for side in entry["shape"]) for entry in tensors)
    if not 0 <= count < _LARGEST:
        raise ValueError("its shapes make no sense")
    return Weights(count, len(tensors), sorted({str(one["dtype"]) for one in tensors}), size)


def _last_lines(path: Path) -> list[str]:
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - _LOG_BYTES))
        text = file.read().decode("utf-8", errors="replace")
    return text.splitlines()[-_LOG_LINES:]
