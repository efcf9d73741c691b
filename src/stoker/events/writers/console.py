"""`Console`: one line per step on standard error."""

import sys
from collections.abc import Container, Sequence
from datetime import timedelta

from stoker.events.storage import Row
from stoker.events.writers.base import RunProgress, Writer

_UNITS = {"time/step": ("time", "s/step"), "time/data": ("data", "s/step")}


class Console(Writer):
    """Print one line per row to standard error.

    ``step: 50/1000  eta: 0:00:12  samples: 400  train/loss: 0.4321  lr: 1.00e-03``
    """

    def __init__(self) -> None:
        super().__init__(None)

    def write(self, rows: list[Row], progress: RunProgress) -> None:
        """Print the rows."""
        for row in rows:
            print(format_row(row, progress), file=sys.stderr, flush=True)


def format_row(row: Row, progress: RunProgress) -> str:
    """Return a row as one line of ``name: value`` pairs, separated by two spaces."""
    total = f"/{progress.total_steps}" if progress.total_steps else ""
    parts = [f"step: {row.step}{total}"]
    if progress.eta is not None and row.step == progress.step:
        parts.append(f"eta: {timedelta(seconds=round(progress.eta))}")
    parts.append(f"samples: {progress.samples}")
    parts += [_pair(name, value) for name, value in row.scalars.items()]
    return "  ".join(parts)


def _pair(name: str, value: float) -> str:
    if name in _UNITS:
        label, unit = _UNITS[name]
        return f"{label}: {value:.4f} {unit}"
    return f"{name}: {format_number(name, value)}"


def format_seconds(seconds: float) -> str:
    """Return a duration as text: ``1.2 s``, ``0:12:05``, ``3 days, 1:00:00``."""
    return f"{seconds:.1f} s" if seconds < 60 else str(timedelta(seconds=round(seconds)))


def format_table(rows: Sequence[Sequence[str]], *, left: Container[int] = (0,)) -> str:
    """Return rows as aligned lines; the columns ``left`` are text, the others numbers."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        pairs = enumerate(zip(row, widths, strict=True))
        cells = [cell.ljust(w) if at in left else cell.rjust(w) for at, (cell, w) in pairs]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def format_number(name: str, value: float) -> str:
    """Return a number as readable text; learning rates use scientific notation."""
    if name.split("/", maxsplit=1)[0] == "lr":
        return f"{value:.2e}"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
