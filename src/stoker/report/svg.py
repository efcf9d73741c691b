"""Pictures for a web page: curves and shares as SVG, made of text alone."""

import math
from collections.abc import Sequence
from html import escape

from stoker.report.blocks import Chart, Shares
from stoker.report.format import said_share
from stoker.report.plot_points import COLORS, said_tick, span, thinned, ticks

_WIDTH, _HEIGHT = 460, 240
_LEFT, _RIGHT, _TOP, _BOTTOM = 58, 12, 10, 26


def chart_svg(chart: Chart) -> str:
    """The curves of one name; an empty string where there is nothing to draw."""
    drawn = [(line, list(thinned(line.curve))) for line in chart.lines]
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
        parts.append(_label(x(step), _HEIGHT - 8, "middle", step))
    for line, points in drawn:
        placed = [(x(step), y(value)) for step, value in points]
        parts.append(_curve(placed, COLORS[line.color % len(COLORS)]))
    return "".join([*parts, "</svg>"])


def _label(x: float, y: float, anchor: str, value: float) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{said_tick(value)}</text>'


def _curve(points: Sequence[tuple[float, float]], color: str) -> str:
    """A line through points, with a gap where there is none; a dot for a point by itself."""
    words, dots, open_at = [], [], -1
    for index, (x, y) in enumerate(points):
        if math.isnan(y):
            open_at = -1
            continue
        follows = index + 1 < len(points) and not math.isnan(points[index + 1][1])
        if open_at < 0 and not follows:
            dots.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.5" fill="{color}"/>')
        words.append(f"{'L' if open_at >= 0 else 'M'}{x:.1f} {y:.1f}")
        open_at = index
    return f'<path class="curve" stroke="{color}" d="{"".join(words)}"/>{"".join(dots)}'


def shares_svg(shares: Shares) -> str:
    """Parts of a whole as one bar, with a legend below it."""
    whole = sum(value for _, value in shares.parts) or 1.0
    bar, legend, at = [], [], 0.0
    for number, (name, value) in enumerate(shares.parts):
        color, width = COLORS[(number + 2) % len(COLORS)], value / whole * 1000
        bar.append(f'<rect x="{at:.1f}" width="{width:.1f}" height="28" fill="{color}"/>')
        share = said_share(value / whole)
        legend.append(f'<span><i style="background:{color}"></i>{escape(name)} {share}</span>')
        at += width
    picture = f'<svg class="bar" viewBox="0 0 1000 28" preserveAspectRatio="none">{"".join(bar)}'
    return f'{picture}</svg><p class="legend">{"".join(legend)}</p>'
