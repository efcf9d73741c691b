"""Draw curves in the terminal."""

from collections.abc import Sequence

_BARS = "▁▂▃▄▅▆▇█"


def sparkline(values: Sequence[float], width: int = 60) -> str:
    """Return a curve as one line of block characters."""
    picked = _thinned(values, width)
    low, high = min(picked), max(picked)
    span = (high - low) or 1.0
    return "".join(_BARS[min(7, int((value - low) / span * 8))] for value in picked)


def chart(values: Sequence[float], width: int = 64, height: int = 12) -> list[str]:
    """Return a curve as several lines, labelled with its highest and lowest value."""
    picked = _thinned(values, width)
    low, high = min(picked), max(picked)
    span = (high - low) or 1.0
    rows = [round((value - low) / span * (height - 1)) for value in picked]
    lines = []
    for row in range(height - 1, -1, -1):
        label = f"{high:10.4g}" if row == height - 1 else f"{low:10.4g}" if row == 0 else " " * 10
        lines.append(f"{label} │" + "".join("•" if at == row else " " for at in rows).rstrip())
    return lines


def _thinned(values: Sequence[float], width: int) -> list[float]:
    if len(values) <= width:
        return list(values)
    return [values[round(i * (len(values) - 1) / (width - 1))] for i in range(width)]
