"""Thin curves for drawing: a window of a series, with few points that keep every peak."""

from typing import Any, Literal, TypeAlias, get_args

import numpy as np
from numpy.typing import NDArray

from stoker.rundir.metrics_index import Columns, Floats

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
            began = np.nanmin(np.append(head["time"], np.inf))
            return np.asarray(np.nan_to_num(head["time"] - began))
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
