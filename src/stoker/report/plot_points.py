"""Curves made fit for a picture: few points, and none that cannot be drawn."""

import math
from collections.abc import Iterator, Sequence

from stoker.report.facts import Curve

COLORS = ("#2f6fde", "#d9622b", "#2a9d6f", "#b03a9c", "#8a7a14", "#6b5bd2", "#c43d4b", "#4d8f9d")
"""The colours of runs, one after another; each is seen on white and on black."""

_LARGEST = 1e300
_BUCKETS = 300


def thinned(curve: Curve, buckets: int = _BUCKETS) -> Iterator[tuple[int, float]]:
    """Points of a curve: all of them, or of each stretch of it the lowest and the highest.

    A value that is no finite number is kept as NaN: there the curve has a gap.
    """
    points = list(zip(curve.steps, map(_drawable, curve.values), strict=True))
    points.sort(key=lambda point: point[0])
    size = math.ceil(len(points) / buckets)
    for start in range(0, len(points), max(1, size)):
        stretch = points[start : start + size]
        if size <= 2:
            yield from stretch
            continue
        finite = [i for i, (_, value) in enumerate(stretch) if not math.isnan(value)] or [0]
        low = min(finite, key=lambda i: stretch[i][1])
        high = max(finite, key=lambda i: stretch[i][1])
        yield from (stretch[i] for i in sorted({low, high}))


def _drawable(value: float) -> float:
    return value if abs(value) < _LARGEST else math.nan


def ticks(low: float, high: float, wanted: int = 6) -> list[float]:
    """Round numbers between two others, at most so many and a half of them at least."""
    if high - low < 1e-280:  # below that, quotients overflow
        return [low]
    power = 10.0 ** math.floor(math.log10((high - low) / wanted))
    fits = [times * power for times in (1, 2, 5, 10) if (high - low) / (times * power) <= wanted]
    step = fits[0] if fits and fits[0] > 0 else high - low
    first = math.ceil(low / step)
    found = [(first + i) * step for i in range(wanted + 1)]
    return [tick for tick in found if low <= tick <= high]


def said_tick(value: float) -> str:
    """A number at an axis: ``20k``, ``0.25``, ``1e-05``."""
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if size <= abs(value) < 1e12:
            return f"{value / size:.4g}{unit}"
    return f"{value:.4g}"


def span(values: Sequence[float]) -> tuple[float, float]:
    """The lowest and the highest of finite values, never the same."""
    low, high = min(values), max(values)
    if high > low:
        return low, high
    return low - (abs(low) or 1.0) / 2, high + (abs(high) or 1.0) / 2
