"""`Columns`: the rows of a ``metrics.jsonl`` turned into one array per name."""

import os
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Any

import numpy as np
import orjson
import xxhash
from numpy.typing import NDArray

from stoker.storage import LocalStorage, atomic_file

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
    data = LocalStorage(path.parent).read_range(path.name, 0, path.stat().st_size)
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


CHUNK = 1 << 20
_SPACING = 1 << 20
_LOOK_BACK = 4096
_WORTH_KEEPING = 1 << 20


@dataclass(frozen=True, slots=True)
class _Mark:
    """How far the file was read, with how many rows, and what stood before that place."""

    offset: int
    rows: int
    digest: int


class MetricsFile:
    """The numbers of one run, read on from where the last look ended.

    A run that goes on after a kill cuts its file and writes on: the last mark whose surroundings
    are as they were tells how far back to go, so that nothing is read twice but what was cut.

    Args:
        opens: gives a descriptor of the file.
        cache: where the index is kept; None keeps it in memory alone.
    """

    def __init__(self, opens: Callable[[], int], cache: Path | None = None) -> None:
        self.columns = Columns()
        self.lock = threading.Lock()
        self.share_read = 0.0
        self.bytes_read = 0
        self._opens, self._cache = opens, cache
        self._marks: list[_Mark] = []
        self._skipping = False
        self._seen: tuple[int, int, int] | None = None
        self._kept_offset = 0
        self._tried_cache = cache is None

    @property
    def whole(self) -> bool:
        """Whether all there is has been read."""
        return self.share_read >= 1.0

    def refresh(self, seconds: float = 0.1) -> bool:
        """Read what is new, for about so long; whether anything has changed."""
        try:
            file = self._opens()
        except (OSError, ValueError):
            return self._forget()
        try:
            with self.lock:
                return self._refresh(file, monotonic() + seconds)
        except OSError:
            self.share_read = 1.0  # as far as it can be read
            return False
        finally:
            os.close(file)

    def keep(self) -> None:
        """Put the index into the cache, if it is worth it and not there yet."""
        with self.lock:
            offset = self._offset
            worth = max(_WORTH_KEEPING, self._kept_offset // 10)
            if self._cache is None or offset - self._kept_offset < worth:
                return
            arrays = self.columns.arrays()
            marks = [[mark.offset, mark.rows, mark.digest] for mark in self._marks]
            state = {"marks": marks, "bad": self.columns.bad}
        self._kept_offset = offset
        with suppress(OSError):  # the board also works without a cache
            self._cache.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            with atomic_file(self._cache, durable=False) as temporary:
                save_arrays(temporary, state, arrays)

    @property
    def _offset(self) -> int:
        return self._marks[-1].offset if self._marks else 0

    def _forget(self) -> bool:
        had = len(self.columns) > 0
        self.columns, self._marks, self._seen = Columns(), [], None
        self._kept_offset, self.share_read = 0, 1.0
        return had

    def _refresh(self, file: int, until: float) -> bool:
        found = os.fstat(file)
        seen = (found.st_ino, found.st_size, found.st_mtime_ns)
        if seen == self._seen and self.whole:
            return False
        if not self._tried_cache:
            self._tried_cache = True
            self._take_from_cache()
        rows_before = len(self.columns)
        changed = self._go_back(file, found.st_size)
        while self._read_on(file, found.st_size) and monotonic() < until:
            pass
        self._seen = seen
        return changed or len(self.columns) != rows_before

    def _go_back(self, file: int, size: int) -> bool:
        """Forget what the file no longer holds."""
        changed = False
        while self._marks:
            mark = self._marks[-1]
            if mark.offset <= size and _digest(file, mark.offset) == mark.digest:
                break
            self._marks.pop()
            changed = True
        if changed:
            self.columns.cut(self._marks[-1].rows if self._marks else 0)
            self._kept_offset, self._skipping = 0, False
        return changed

    def _read_on(self, file: int, size: int) -> bool:
        """Read one piece; whether there may be more."""
        at = self._offset
        piece = os.pread(file, min(CHUNK, max(0, size - at)), at)
        self.bytes_read += len(piece)
        end = piece.rfind(b"\n") + 1
        if end == 0:
            if len(piece) < CHUNK:
                self.share_read = 1.0
                return False
            end, self._skipping = len(piece), True  # a line as long as this is none of ours
            self._mark(file, at + end)
            return True
        lines = piece[: end - 1].split(b"\n")
        if self._skipping:
            lines, self._skipping = lines[1:], False
            self.columns.bad += 1
        self.columns.extend(lines)
        self._mark(file, at + end)
        self.share_read = (at + end) / size if len(piece) == CHUNK else 1.0
        return self.share_read < 1.0

    def _mark(self, file: int, offset: int) -> None:
        marks = self._marks
        marks.append(_Mark(offset, len(self.columns), _digest(file, offset)))
        if len(marks) > 2 and marks[-2].offset - marks[-3].offset < _SPACING:
            del marks[-2]

    def _take_from_cache(self) -> None:
        if self._cache is None or not self._cache.is_file():
            return
        try:
            state, arrays = load_arrays(self._cache)
            marks = [_Mark(*mark) for mark in state["marks"]]
            columns = Columns.of(arrays)
            os.utime(self._cache)
        except Exception:  # whatever is wrong with it, the file itself can be read
            return
        if marks and marks[-1].rows == len(columns):
            self.columns, self._marks, self._kept_offset = columns, marks, marks[-1].offset
            columns.bad = state["bad"]


def _digest(file: int, offset: int) -> int:
    start = max(0, offset - _LOOK_BACK)
    return xxhash.xxh3_64_intdigest(os.pread(file, offset - start, start))
