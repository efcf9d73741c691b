"""Curves as one picture, by matplotlib."""

import math
import warnings
from pathlib import Path

from stoker.report.blocks import Charts
from stoker.report.plot_points import COLORS, thinned

_COLUMNS = 3
_MOST = 30


def save_picture(block: Charts, path: Path) -> None:
    """Draw charts beside each other, at most 30 of them.

    Raises:
        ImportError: there is no matplotlib.
    """
    from matplotlib.figure import Figure

    charts = block.charts[:_MOST]
    rows = max(1, math.ceil(len(charts) / _COLUMNS))
    figure = Figure(figsize=(4.6 * _COLUMNS, 2.9 * rows), layout="constrained")
    all_axes = figure.subplots(rows, _COLUMNS, squeeze=False).flat
    for axes in list(all_axes)[len(charts) :]:
        axes.remove()
    for axes, chart in zip(all_axes, charts, strict=False):
        for line in chart.lines:
            points = list(thinned(line.curve))
            color = COLORS[line.color % len(COLORS)]
            dot = "." if len(points) == 1 else ""
            axes.plot([p[0] for p in points], [p[1] for p in points], dot, color=color, ls="-",
                      label=line.run.removeprefix("_"))  # fmt: skip
        axes.set_title(chart.name, fontsize=10, parse_math=False)
        axes.grid(alpha=0.2)
        if len(chart.lines) > 1:
            for entry in axes.legend(fontsize=8).get_texts():
                entry.set_parse_math(False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a sign that the font has not
        figure.savefig(path, dpi=110)
