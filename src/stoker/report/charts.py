"""Draw curves and shares: as SVG for a web page, and as a PNG by matplotlib."""

import math
import warnings
from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path

import numpy as np

from stoker.report.document import Chart, Charts, Shares
from stoker.rundir.goodput import format_share
from stoker.rundir.metrics_index import thin
from stoker.rundir.reader import Curve

COLORS = ("#2f6fde", "#d9622b", "#2a9d6f", "#b03a9c", "#8a7a14", "#6b5bd2", "#c43d4b", "#4d8f9d")
"""The colors of runs, in order; each is visible on white and on black."""

_LARGEST = 1e300
_POINTS = 600
_WIDTH, _HEIGHT = 460, 240
_LEFT, _RIGHT, _TOP, _BOTTOM = 72, 12, 10, 42
_COLUMNS = 3
_LONGEST_TITLE = 30
_MOST = 30


def points_of(curve: Curve, most: int = _POINTS) -> Iterator[tuple[int, float]]:
    """Yield the points to draw of a curve, by step: at most ``most``, with every peak.

    A value that cannot be drawn is NaN, which leaves a gap.
    """
    order = np.argsort(curve.steps, kind="stable")
    steps, values = curve.steps[order], curve.values[order]
    values = np.where(np.abs(values) < _LARGEST, values, np.nan)
    picked = thin(values, most)
    return zip(steps[picked].tolist(), values[picked].tolist(), strict=True)


def chart_svg(chart: Chart) -> str:
    """Return the curves of one name as SVG, an empty string if there is nothing to draw."""
    drawn = [(line, list(points_of(line.curve))) for line in chart.lines]
    finite = [point for _, points in drawn for point in points if not math.isnan(point[1])]
    if not finite:
        return ""
    x_low, x_high = span([float(step) for step, _ in finite])
    y_low, y_high = span([value for _, value in finite])

    def x(step: float) -> float:
        return _LEFT + (step - x_low) / (x_high - x_low) * (_WIDTH - _LEFT - _RIGHT)

    def y(value: float) -> float:
        return _HEIGHT - _BOTTOM - (value - y_low) / (y_high - y_low) * (_HEIGHT - _TOP - _BOTTOM)

    parts = [f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="curves">']
    for value in ticks(y_low, y_high):
        parts.append(f'<path class="grid" d="M{_LEFT} {y(value):.1f}H{_WIDTH - _RIGHT}"/>')
        parts.append(_label(_LEFT - 6, y(value) + 4, "end", value))
    for step in ticks(x_low, x_high):
        parts.append(_label(x(step), _HEIGHT - _BOTTOM + 18, "middle", step))
    middle = _TOP + (_HEIGHT - _TOP - _BOTTOM) / 2
    parts.append(_title((_LEFT + _WIDTH - _RIGHT) / 2, _HEIGHT - 8, "step"))
    parts.append(_title(12, middle, axis_title(chart.name), f"rotate(-90 12 {middle:.0f})"))
    for line, points in drawn:
        placed = [(x(step), y(value)) for step, value in points]
        parts.append(_curve(placed, COLORS[line.color % len(COLORS)]))
    return "".join([*parts, "</svg>"])


def axis_title(name: str) -> str:
    """Return what the y axis of a chart shows: the last part of a name, at most 30 characters."""
    short = name if name.endswith("/s") else name.rpartition("/")[2] or name
    return short if len(short) <= _LONGEST_TITLE else f"{short[: _LONGEST_TITLE - 1]}…"


def _title(x: float, y: float, text: str, transform: str = "") -> str:
    turned = f' transform="{transform}"' if transform else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="middle"{turned}>{_text(text)}</text>'


def _text(text: str) -> str:
    """Return text without markup and control characters."""
    return escape("".join(char if char >= " " else "\ufffd" for char in text))


def _label(x: float, y: float, anchor: str, value: float) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{format_tick(value)}</text>'


def _curve(points: Sequence[tuple[float, float]], color: str) -> str:
    """Return a line through points with a gap at NaN, and a dot for a point between gaps."""
    commands, dots, is_open = [], [], False
    for index, (x, y) in enumerate(points):
        if math.isnan(y):
            is_open = False
            continue
        follows = index + 1 < len(points) and not math.isnan(points[index + 1][1])
        if not is_open and not follows:
            dots.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.5" fill="{color}"/>')
        commands.append(f"{'L' if is_open else 'M'}{x:.1f} {y:.1f}")
        is_open = True
    return f'<path class="curve" stroke="{color}" d="{"".join(commands)}"/>{"".join(dots)}'


def shares_svg(shares: Shares) -> str:
    """Return shares as one bar with a legend below."""
    total = sum(value for _, value in shares.parts) or 1.0
    bar, legend, at = [], [], 0.0
    for number, (name, value) in enumerate(shares.parts):
        color, width = COLORS[(number + 2) % len(COLORS)], value / total * 1000
        bar.append(f'<rect x="{at:.1f}" width="{width:.1f}" height="28" fill="{color}"/>')
        share = format_share(value / total)
        legend.append(f'<span><i style="background:{color}"></i>{escape(name)} {share}</span>')
        at += width
    picture = f'<svg class="bar" viewBox="0 0 1000 28" preserveAspectRatio="none">{"".join(bar)}'
    return f'{picture}</svg><p class="legend">{"".join(legend)}</p>'


def ticks(low: float, high: float, wanted: int = 6) -> list[float]:
    """Return round numbers between two others, about as many as wanted."""
    if high - low < 1e-280:  # below that, quotients overflow
        return [low]
    power = 10.0 ** math.floor(math.log10((high - low) / wanted))
    fits = [times * power for times in (1, 2, 5, 10) if (high - low) / (times * power) <= wanted]
    step = fits[0] if fits and fits[0] > 0 else high - low
    first = math.ceil(low / step)
    found = [(first + i) * step for i in range(wanted + 1)]
    return [tick for tick in found if low <= tick <= high]


def format_tick(value: float) -> str:
    """Return a number for an axis: ``20k``, ``0.25``, ``1e-05``."""
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if size <= abs(value) < 1e12:
            return f"{value / size:.4g}{unit}"
    return f"{value:.4g}"


def span(values: Sequence[float]) -> tuple[float, float]:
    """Return the lowest and the highest of finite values, widened if they are equal."""
    low, high = min(values), max(values)
    if high > low:
        return low, high
    return low - (abs(low) or 1.0) / 2, high + (abs(high) or 1.0) / 2


def save_png(block: Charts, path: Path) -> None:
    """Draw at most 30 charts next to each other into a PNG.

    Raises:
        ImportError: matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError("a PNG needs matplotlib: pip install 'stoker[plot]'") from error

    charts = block.charts[:_MOST]
    rows = max(1, math.ceil(len(charts) / _COLUMNS))
    figure = Figure(figsize=(4.6 * _COLUMNS, 2.9 * rows), layout="constrained")
    all_axes = figure.subplots(rows, _COLUMNS, squeeze=False).flat
    for axes in list(all_axes)[len(charts) :]:
        axes.remove()
    for axes, chart in zip(all_axes, charts, strict=False):
        for line in chart.lines:
            points = list(points_of(line.curve))
            color = COLORS[line.color % len(COLORS)]
            dot = "." if len(points) == 1 else ""
            axes.plot([p[0] for p in points], [p[1] for p in points], dot, color=color, ls="-",
                      label=line.run.removeprefix("_"))  # fmt: skip
        axes.set_title(chart.name, fontsize=10, parse_math=False)
        axes.set_xlabel("step", fontsize=8)
        axes.set_ylabel(axis_title(chart.name), fontsize=8, parse_math=False)
        axes.grid(alpha=0.2)
        if len(chart.lines) > 1:
            for entry in axes.legend(fontsize=8).get_texts():
                entry.set_parse_math(False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a glyph that the font does not have
        figure.savefig(path, dpi=110)
