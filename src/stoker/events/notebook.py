"""HTML for notebooks: tables and small curves without scripts, for dark and light pages."""

from collections.abc import Mapping, Sequence
from html import escape
from math import isfinite
from typing import TypeAlias

Points: TypeAlias = Sequence[tuple[float, float]]

_WIDTH, _HEIGHT, _MARGIN = 240, 96, 6
_MAX_POINTS = 300
_DASHES = ("none", "6 3", "2 3", "8 3 2 3")
"""How the lines of a chart differ: not everyone distinguishes colours."""

_CELL = "padding:2px 10px;text-align:right;font-variant-numeric:tabular-nums"


def table_html(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table; all texts are escaped."""
    head = "".join(f'<th scope="col" style="{_CELL}">{escape(cell)}</th>' for cell in header)
    body = "".join(
        "<tr>" + "".join(f'<td style="{_CELL}">{escape(cell)}</td>' for cell in row) + "</tr>"
        for row in rows
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def pre_html(text: str) -> str:
    """Return preformatted text."""
    return f'<pre style="line-height:1.3">{escape(text)}</pre>'


def charts_html(series: Mapping[str, Points]) -> str:
    """Return one chart for ``train/loss`` and ``val/loss`` together, and one for each other name.

    Args:
        series: points ``(x, y)`` by the name of the result; what is not finite is left out.
    """
    charts: dict[str, dict[str, Points]] = {}
    for name, points in series.items():
        finite = [(x, y) for x, y in points if isfinite(y)]
        if len(finite) > 1:
            charts.setdefault(name.rpartition("/")[2], {})[name] = _thinned(finite)
    drawn = "".join(_figure(lines) for lines in charts.values())
    return f'<div style="display:flex;flex-wrap:wrap;gap:12px">{drawn}</div>' if drawn else ""


def _figure(lines: Mapping[str, Points]) -> str:
    values = [y for points in lines.values() for _, y in points]
    steps = [x for points in lines.values() for x, _ in points]
    low, high, first, last = min(values), max(values), min(steps), max(steps)

    def place(x: float, y: float) -> str:
        across = (x - first) / (last - first or 1) * (_WIDTH - 2 * _MARGIN) + _MARGIN
        down = (high - y) / (high - low or 1) * (_HEIGHT - 2 * _MARGIN) + _MARGIN
        return f"{across:.1f},{down:.1f}"

    drawn = "".join(
        f'<polyline fill="none" stroke="currentColor" stroke-width="1.5" '
        f'stroke-dasharray="{_DASHES[at % len(_DASHES)]}" '
        f'points="{" ".join(place(x, y) for x, y in points)}"/>'
        for at, points in enumerate(lines.values())
    )
    title = escape(f"{', '.join(lines)}: {low:.4g} to {high:.4g}")
    legend = " ".join(
        f'<span style="white-space:nowrap"><svg width="22" height="8" aria-hidden="true"><line '
        f'x1="0" x2="22" y1="4" y2="4" stroke="currentColor" stroke-width="1.5" '
        f'stroke-dasharray="{_DASHES[at % len(_DASHES)]}"/></svg> {escape(name)} '
        f"{points[-1][1]:.4g}</span>"
        for at, (name, points) in enumerate(lines.items())
    )
    return (
        f'<figure style="margin:0"><svg viewBox="0 0 {_WIDTH} {_HEIGHT}" width="{_WIDTH}" '
        f'height="{_HEIGHT}" role="img" style="border:1px solid;border-radius:3px;opacity:.85">'
        f"<title>{title}</title>{drawn}</svg>"
        f'<figcaption style="font-size:11px;max-width:{_WIDTH}px">{legend}<br>'
        f"{low:.4g} … {high:.4g}</figcaption></figure>"
    )


def _thinned(points: Points) -> Points:
    """Return at most `_MAX_POINTS` points, evenly chosen, with the last one."""
    if len(points) <= _MAX_POINTS:
        return points
    stride = -(-len(points) // (_MAX_POINTS - 1))
    chosen = list(points[::stride])
    return chosen if chosen[-1] == points[-1] else [*chosen, points[-1]]
