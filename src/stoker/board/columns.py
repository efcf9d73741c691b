"""`Columns`: the rows of a ``metrics.jsonl`` turned into one array per name."""

from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

Floats = NDArray[np.float64]
HEAD = ("step", "epoch", "samples", "time")
MOST_NAMES = 2000
"""A file with more names than this is no file of ours; the rest of them is left out."""


class Growing:
    """An array that can be appended to, and cut."""

    def __init__(self, start: NDArray[Any]) -> None:
        self._buffer = start
        self._length = len(start)

    def __len__(self) -> int:
        return self._length

    @property
    def view(self) -> NDArray[Any]:
        """What it holds, without a copy."""
        return self._buffer[: self._length]

    def append(self, values: NDArray[Any]) -> None:
        """Add values at the end."""
        needed = self._length + len(values)
        if needed > len(self._buffer):
            grown = np.empty(max(needed, 2 * len(self._buffer), 64), self._buffer.dtype)
            grown[: self._length] = self.view
            self._buffer = grown
        self._buffer[self._length : needed] = values
        self._length = needed

    def cut(self, length: int) -> None:
        """Forget all but the first values; a view that was given out keeps what it shows."""
        if length < self._length:
            self._buffer, self._length = self._buffer[:length].copy(), length


class Columns:
    """Numbers by name, each with the row it stands in; rows have step, epoch, samples, time."""

    def __init__(self) -> None:
        self.head = {name: Growing(np.empty(0)) for name in HEAD}
        self.rows: dict[str, Growing] = {}
        self.values: dict[str, Growing] = {}
        self.bad = 0

    def __len__(self) -> int:
        return len(self.head["step"])

    def extend(self, lines: list[bytes]) -> None:
        """Take in lines; what is no row of numbers is counted and left out."""
        head: dict[str, list[Any]] = {name: [] for name in HEAD}
        rows: dict[str, list[int]] = {}
        values: dict[str, list[Any]] = {}
        at = len(self)
        for line in lines:
            row = _parsed(line)
            if row is None:
                self.bad += bool(line.strip())
                continue
            for name in HEAD:
                head[name].append(row.pop(name, None))
            for name, value in row.items():
                if name in rows:
                    rows[name].append(at)
                    values[name].append(value)
                elif name in self.rows or len(rows) + len(self.rows) < MOST_NAMES:
                    rows[name], values[name] = [at], [value]
            at += 1
        for name in HEAD:
            self.head[name].append(_floats(head[name]))
        for name, places in rows.items():
            if name not in self.rows:
                self.rows[name] = Growing(np.empty(0, np.int32))
                self.values[name] = Growing(np.empty(0))
            self.rows[name].append(np.array(places, np.int32))
            self.values[name].append(_floats(values[name]))

    def cut(self, length: int) -> None:
        """Forget the rows after the first ``length``."""
        for column in self.head.values():
            column.cut(length)
        for name in list(self.rows):
            kept = int(np.searchsorted(self.rows[name].view, length))
            self.rows[name].cut(kept)
            self.values[name].cut(kept)
            if not kept:
                del self.rows[name], self.values[name]

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Everything, for a file."""
        found = {f"h{name}": column.view for name, column in self.head.items()}
        for name in self.rows:
            found[f"r{name}"], found[f"v{name}"] = self.rows[name].view, self.values[name].view
        return found

    @classmethod
    def of(cls, arrays: dict[str, NDArray[Any]]) -> "Columns":
        """Back from `arrays`."""
        columns = cls()
        columns.head = {name: Growing(arrays[f"h{name}"]) for name in HEAD}
        for name in sorted(key[1:] for key in arrays if key.startswith("r")):
            columns.rows[name] = Growing(arrays[f"r{name}"])
            columns.values[name] = Growing(arrays[f"v{name}"])
        return columns


def save_arrays(path: Path, state: Any, arrays: dict[str, NDArray[Any]]) -> None:
    """Write arrays as they are in memory after a line that says what they are."""
    ordered = sorted(arrays.items(), key=lambda item: -item[1].dtype.itemsize)
    listed = [[name, array.dtype.str, len(array)] for name, array in ordered]
    line = orjson.dumps({"state": state, "arrays": listed})
    with path.open("wb") as file:
        file.write(line + b" " * (-(len(line) + 1) % 8) + b"\n")
        for _, array in ordered:
            file.write(np.ascontiguousarray(array).data)


def load_arrays(path: Path) -> tuple[Any, dict[str, NDArray[Any]]]:
    """What `save_arrays` wrote; the arrays are read from the disk as they are used."""
    with path.open("rb") as file:
        told = orjson.loads(file.readline())
        at = file.tell()
        data = mmap(file.fileno(), 0, access=ACCESS_READ)
    arrays = {}
    for name, kind, length in told["arrays"]:
        dtype = {"<f8": np.float64, "<i4": np.int32}[kind]
        arrays[name] = np.frombuffer(data, dtype, length, at)
        at += arrays[name].nbytes
    return told["state"], arrays


def _parsed(line: bytes) -> dict[str, Any] | None:
    try:
        row = orjson.loads(line)
    except ValueError:
        return None
    if type(row) is not dict:
        return None
    step = row.get("step")
    return row if type(step) is int and 0 <= step < 2**53 else None


def _floats(values: list[Any]) -> Floats:
    """Numbers; ``"NaN"`` and its like are told as strings, and None is none."""
    try:
        found = np.array(values, np.float64)
    except (TypeError, ValueError, OverflowError):
        found = None
    if found is not None and found.ndim == 1:
        return found
    return np.array([_float(value) for value in values], np.float64)


def _float(value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return float("nan")
