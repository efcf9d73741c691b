"""``metrics.jsonl`` as arrays: an incremental index, and series thinned for plots."""

import json
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
import xxhash
from numpy.typing import NDArray

from stoker.checkpoint.format.tensor_file import TensorReader
from stoker.rundir.safe_folder import parse_json
from stoker.storage import LocalStorage, atomic_file
from stoker.storage.descriptors import closing_descriptor

Floats = NDArray[np.float64]
HEAD = ("step", "epoch", "samples", "time")
_STATE = "state"
MOST_NAMES = 2000
"""How many names are indexed; a file with more of them was not written by a run."""


class GrowingArray:
    """An array that you can append to and truncate."""

    def __init__(self, start: NDArray[Any]) -> None:
        self._buffer = start
        self._length = len(start)

    def __len__(self) -> int:
        return self._length

    @property
    def view(self) -> NDArray[Any]:
        """The values, without a copy."""
        return self._buffer[: self._length]

    def append(self, values: NDArray[Any]) -> None:
        """Append values."""
        needed = self._length + len(values)
        if needed > len(self._buffer):
            grown = np.empty(max(needed, 2 * len(self._buffer), 64), self._buffer.dtype)
            grown[: self._length] = self.view
            self._buffer = grown
        self._buffer[self._length : needed] = values
        self._length = needed

    def truncate(self, length: int) -> None:
        """Keep only the first values; views taken before keep their contents."""
        if length < self._length:
            self._buffer, self._length = self._buffer[:length].copy(), length


class Columns:
    """Values by name, each with its row number; rows have step, epoch, samples and time."""

    def __init__(self) -> None:
        self.head = {name: GrowingArray(np.empty(0)) for name in HEAD}
        self.rows: dict[str, GrowingArray] = {}
        self.values: dict[str, GrowingArray] = {}
        self.invalid_lines = 0

    def __len__(self) -> int:
        return len(self.head["step"])

    def extend(self, lines: list[bytes]) -> None:
        """Add lines; those that are not rows of numbers are counted and left out."""
        head: dict[str, list[Any]] = {name: [] for name in HEAD}
        rows: dict[str, list[int]] = {}
        values: dict[str, list[Any]] = {}
        at = len(self)
        for line in lines:
            row = _parse_row(line)
            if row is None:
                self.invalid_lines += bool(line.strip())
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
                self.rows[name] = GrowingArray(np.empty(0, np.int32))
                self.values[name] = GrowingArray(np.empty(0))
            self.rows[name].append(np.array(places, np.int32))
            self.values[name].append(_floats(values[name]))

    def truncate(self, length: int) -> None:
        """Keep only the first ``length`` rows."""
        for column in self.head.values():
            column.truncate(length)
        for name in list(self.rows):
            kept = int(np.searchsorted(self.rows[name].view, length))
            self.rows[name].truncate(kept)
            self.values[name].truncate(kept)
            if not kept:
                del self.rows[name], self.values[name]

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return all arrays by name, to be saved."""
        found = {f"h{name}": column.view for name, column in self.head.items()}
        for name in self.rows:
            found[f"r{name}"], found[f"v{name}"] = self.rows[name].view, self.values[name].view
        return found

    @classmethod
    def from_arrays(cls, arrays: dict[str, NDArray[Any]]) -> "Columns":
        """Rebuild the columns from `arrays`."""
        columns = cls()
        columns.head = {name: GrowingArray(arrays[f"h{name}"]) for name in HEAD}
        for name in sorted(key[1:] for key in arrays if key.startswith("r")):
            columns.rows[name] = GrowingArray(arrays[f"r{name}"])
            columns.values[name] = GrowingArray(arrays[f"v{name}"])
        return columns


def save_arrays(path: Path, state: Any, arrays: dict[str, NDArray[Any]]) -> None:
    """Write arrays as a safetensors file, and a state as JSON in one more of them."""
    from safetensors.numpy import save_file

    save_file({**arrays, _STATE: np.frombuffer(json.dumps(state).encode(), np.uint8)}, path)


def load_arrays(path: Path) -> tuple[Any, dict[str, NDArray[Any]]]:
    """Return what `save_arrays` wrote, with the arrays mapped from the disk."""
    reader = TensorReader(LocalStorage(path.parent), path.name)
    arrays = {name: reader.view(name).numpy() for name in reader.entries}
    return json.loads(arrays.pop(_STATE).tobytes()), arrays


def _parse_row(line: bytes) -> dict[str, Any] | None:
    try:
        row = parse_json(line)
    except ValueError:
        return None
    if type(row) is not dict:
        return None
    step = row.get("step")
    return row if type(step) is int and 0 <= step < 2**53 else None


def _floats(values: list[Any]) -> Floats:
    """Return values as floats; strings such as ``"NaN"`` count as numbers, None as NaN."""
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
_DIGESTED = 4096
_WORTH_SAVING = 1 << 20


@dataclass(frozen=True, slots=True)
class _Bookmark:
    """An offset up to which the file was read, the rows by then, and a digest of what precedes."""

    offset: int
    rows: int
    digest: int


class MetricsFile:
    """The metrics of one run. Each refresh reads only what was added since the last one.

    A run that is resumed after a kill truncates its file and appends to it. The last bookmark whose
    digest still matches is where reading resumes, so only the replaced part is read again.

    Args:
        opens: returns a descriptor of the file.
        cache: the file to save the index in; None keeps it in memory only.
    """

    def __init__(self, opens: Callable[[], int], cache: Path | None = None) -> None:
        self.columns = Columns()
        self.lock = threading.Lock()
        self.fraction_read = 0.0
        self.bytes_read = 0
        self._opens, self._cache = opens, cache
        self._bookmarks: list[_Bookmark] = []
        self._skipping = False
        self._seen: tuple[int, int, int] | None = None
        self._saved_offset = 0
        self._tried_cache = cache is None

    @property
    def complete(self) -> bool:
        """Whether the entire file has been read."""
        return self.fraction_read >= 1.0

    def refresh(self, seconds: float = 0.1) -> bool:
        """Read what is new for about ``seconds``, and return whether anything changed."""
        try:
            file = self._opens()
        except (OSError, ValueError):
            return self._reset()
        try:
            with self.lock, closing_descriptor(file):
                return self._refresh(file, monotonic() + seconds)
        except OSError:
            self.fraction_read = 1.0  # no more of it can be read
            return False

    def save_index(self) -> None:
        """Save the index to the cache if enough was read since the last time."""
        with self.lock:
            offset = self._offset
            least = max(_WORTH_SAVING, self._saved_offset // 10)
            if self._cache is None or offset - self._saved_offset < least:
                return
            arrays = self.columns.arrays()
            bookmarks = [[one.offset, one.rows, one.digest] for one in self._bookmarks]
            state = {"bookmarks": bookmarks, "invalid_lines": self.columns.invalid_lines}
        self._saved_offset = offset
        with suppress(OSError):  # the board also works without a cache
            self._cache.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            with atomic_file(self._cache, durable=False) as temporary:
                save_arrays(temporary, state, arrays)

    @property
    def _offset(self) -> int:
        return self._bookmarks[-1].offset if self._bookmarks else 0

    def _reset(self) -> bool:
        had = len(self.columns) > 0
        self.columns, self._bookmarks, self._seen = Columns(), [], None
        self._saved_offset, self.fraction_read = 0, 1.0
        return had

    def _refresh(self, file: int, until: float) -> bool:
        found = os.fstat(file)
        seen = (found.st_ino, found.st_size, found.st_mtime_ns)
        if seen == self._seen and self.complete:
            return False
        if not self._tried_cache:
            self._tried_cache = True
            self._load_index()
        rows_before = len(self.columns)
        changed = self._drop_replaced(file, found.st_size)
        while self._read_chunk(file, found.st_size) and monotonic() < until:
            pass
        self._seen = seen
        return changed or len(self.columns) != rows_before

    def _drop_replaced(self, file: int, size: int) -> bool:
        """Drop rows that the file no longer holds, and return whether there were any."""
        changed = False
        while self._bookmarks:
            bookmark = self._bookmarks[-1]
            if bookmark.offset <= size and _digest(file, bookmark.offset) == bookmark.digest:
                break
            self._bookmarks.pop()
            changed = True
        if changed:
            self.columns.truncate(self._bookmarks[-1].rows if self._bookmarks else 0)
            self._saved_offset, self._skipping = 0, False
        return changed

    def _read_chunk(self, file: int, size: int) -> bool:
        """Read one chunk, and return whether there may be more."""
        at = self._offset
        chunk = os.pread(file, min(CHUNK, max(0, size - at)), at)
        self.bytes_read += len(chunk)
        end = chunk.rfind(b"\n") + 1
        if end == 0:
            if len(chunk) < CHUNK:
                self.fraction_read = 1.0
                return False
            end, self._skipping = len(chunk), True  # no run writes a line this long
            self._bookmark(file, at + end)
            return True
        lines = chunk[: end - 1].split(b"\n")
        if self._skipping:
            lines, self._skipping = lines[1:], False
            self.columns.invalid_lines += 1
        self.columns.extend(lines)
        self._bookmark(file, at + end)
        self.fraction_read = (at + end) / size if len(chunk) == CHUNK else 1.0
        return self.fraction_read < 1.0

    def _bookmark(self, file: int, offset: int) -> None:
        bookmarks = self._bookmarks
        bookmarks.append(_Bookmark(offset, len(self.columns), _digest(file, offset)))
        if len(bookmarks) > 2 and bookmarks[-2].offset - bookmarks[-3].offset < _SPACING:
            del bookmarks[-2]

    def _load_index(self) -> None:
        if self._cache is None or not self._cache.is_file():
            return
        try:
            state, arrays = load_arrays(self._cache)
            bookmarks = [_Bookmark(*bookmark) for bookmark in state["bookmarks"]]
            columns = Columns.from_arrays(arrays)
            os.utime(self._cache)
        except Exception:  # a damaged index is ignored: the file itself can be read
            return
        if bookmarks and bookmarks[-1].rows == len(columns):
            self.columns, self._bookmarks = columns, bookmarks
            self._saved_offset = bookmarks[-1].offset
            columns.invalid_lines = state["invalid_lines"]


def _digest(file: int, offset: int) -> int:
    start = max(0, offset - _DIGESTED)
    return xxhash.xxh3_64_intdigest(os.pread(file, offset - start, start))


Axis: TypeAlias = Literal["step", "samples", "epoch", "time"]
AXES: tuple[str, ...] = get_args(Axis)


class Curves:
    """The curves in columns. Axes are computed once, until there are more rows."""

    def __init__(self, columns: Columns) -> None:
        self.columns = columns
        self._rows = len(columns)
        self._axes: dict[str, tuple[Floats, Floats]] = {}

    def is_current(self, columns: Columns) -> bool:
        """Return whether the columns have had no more rows since."""
        return self.columns is columns and self._rows == len(columns)

    @property
    def began(self) -> float:
        """When the first row was written, in seconds since 1970; infinite without rows."""
        times = self.columns.head["time"].view[: self._rows]
        return float(np.nanmin(np.append(times, np.inf)))

    def window(
        self,
        name: str,
        axis: str,
        points: int,
        start: float | None = None,
        end: float | None = None,
    ) -> dict[str, Any]:
        """Return the part of a series between two positions on an axis, in about ``points`` points.

        ``x`` and ``y`` hold the smallest and the largest value of each bucket, ``mean_x`` and
        ``mean_y`` the means of the buckets, for a smooth line.
        """
        rows, values = self.columns.rows.get(name), self.columns.values.get(name)
        if rows is None or values is None:
            return {"x": [], "y": [], "mean_x": [], "mean_y": [], "count": 0, "bad": 0}
        positions, order = self._axis(axis)
        value = values.view  # before the rows: both may grow meanwhile, rows first
        row = rows.view[: len(value)]
        row = row[: np.searchsorted(row, len(positions))]
        low = 0 if start is None else int(np.searchsorted(order, start))
        high = len(positions) if end is None else int(np.searchsorted(order, end, "right"))
        first = max(0, int(np.searchsorted(row, low)) - 1)
        last = min(len(row), int(np.searchsorted(row, high)) + 1)
        row, value = row[first:last], value[first:last]
        picked = thin(value, points)
        mean_row, mean = bucket_means(row, value, max(1, points // 2))
        x, mean_x = positions[row[picked]], positions[mean_row]
        shown, means_order = _ascending(x), _ascending(mean_x)
        return {
            "x": x[shown],
            "y": value[picked][shown],
            "mean_x": mean_x[means_order],
            "mean_y": mean[means_order],
            "count": len(value),
            "bad": int(len(value) - np.isfinite(value).sum()),
        }

    def _axis(self, axis: str) -> tuple[Floats, Floats]:
        """Return the position of each row on an axis, and an ascending copy for searching."""
        if axis not in self._axes:
            positions = self._positions(axis)
            ascends = bool(np.all(positions[1:] >= positions[:-1]))
            order = positions if ascends else np.maximum.accumulate(np.nan_to_num(positions))
            self._axes[axis] = positions, order
        return self._axes[axis]

    def _positions(self, axis: str) -> Floats:
        head: dict[str, Floats] = {
            name: column.view[: self._rows] for name, column in self.columns.head.items()
        }
        if axis == "epoch":
            return fractional_epochs(head["step"], head["epoch"])
        if axis == "time" and self._rows:
            return np.asarray(np.nan_to_num(head["time"] - self.began))
        return np.asarray(np.nan_to_num(head[axis]))


def fractional_epochs(step: Floats, epoch: Floats) -> Floats:
    """Return epochs with fractions, interpolated by step between the epochs in the file."""
    epoch = np.asarray(np.nan_to_num(epoch))
    turns = np.flatnonzero(np.diff(epoch, prepend=0.0) > 0)
    if not len(turns):
        return epoch
    at = np.concatenate([[0.0], step[turns]])
    number = np.concatenate([[0.0], epoch[turns]])
    length = max(1.0, (at[-1] - at[-2]) / max(1.0, number[-1] - number[-2]))
    at, number = np.append(at, at[-1] + length), np.append(number, number[-1] + 1)
    order = np.argsort(at, kind="stable")
    return np.asarray(np.interp(step, at[order], number[order]))


def thin(values: Floats, points: int) -> NDArray[np.int64]:
    """Return the indices of at most ``points`` values, at least 6, that keep every peak.

    They are the smallest and the largest finite value of each bucket, and both ends.
    """
    count, buckets = len(values), max(1, (points - 4) // 2)
    if count <= max(points, 6):
        return np.arange(count)
    size = count // buckets
    at = buckets * size
    low, high = _finite(values[:at].reshape(buckets, size))
    starts = np.arange(buckets) * size
    found = [starts + low.argmin(1), starts + high.argmax(1), [0, count - 1]]
    if at < count:
        low, high = _finite(values[at:])
        found.append([at + int(low.argmin()), at + int(high.argmax())])
    return np.unique(np.concatenate(found)).astype(np.int64)


def _finite(values: Floats) -> tuple[Floats, Floats]:
    """Return the values to search the minimum in, and the maximum; others count as last."""
    if np.isfinite(_sum(values)):
        return values, values
    finite = np.isfinite(values)
    return np.where(finite, values, np.inf), np.where(finite, values, -np.inf)


def bucket_means(
    rows: NDArray[np.int32], values: Floats, points: int
) -> tuple[NDArray[Any], Floats]:
    """Return the mean of each bucket, and the row in its middle."""
    if len(values) <= 2 * points:
        return rows, values
    size = -(-len(values) // points)
    starts = np.arange(0, len(values), size)
    lengths = np.diff(np.append(starts, len(values)))
    with np.errstate(over="ignore", invalid="ignore"):
        sums = np.add.reduceat(values, starts)
    if not np.isfinite(sums).all():
        finite = np.isfinite(values)
        with np.errstate(over="ignore"):
            sums = np.add.reduceat(np.where(finite, values, 0.0), starts)
        lengths = np.add.reduceat(finite, starts, dtype=np.int64)
    middle = np.minimum(starts + size // 2, len(values) - 1)
    with np.errstate(invalid="ignore", divide="ignore"):
        return rows[middle], sums / lengths


def _sum(values: Floats) -> float:
    with np.errstate(over="ignore", invalid="ignore"):
        return float(values.sum())


def _ascending(x: Floats) -> Any:
    return slice(None) if np.all(x[1:] >= x[:-1]) else np.argsort(x, kind="stable")
