"""Metrics as one line for people and grep."""

import sys
from datetime import timedelta

from stoker.events.storage import Row
from stoker.events.writers.base import Where, Writer

_UNITS = {"time/step": ("time", "s/step"), "time/data": ("data", "s/step")}


class Console(Writer):
    """Prints one line per row.

    ``step: 50/1000  eta: 0:00:12  samples: 400  train/loss: 0.4321  lr: 1.00e-03``
    """

    def __init__(self) -> None:
        super().__init__(None)

    def write(self, rows: list[Row], where: Where) -> None:
        """Print the rows to standard error, as progress goes there too."""
        for row in rows:
            print(line(row, where), file=sys.stderr, flush=True)


def line(row: Row, where: Where) -> str:
    """A row as one line of ``name: value`` pairs, two blanks between them."""
    of = f"/{where.total_steps}" if where.total_steps else ""
    parts = [f"step: {row.step}{of}"]
    if where.eta is not None and row.step == where.step:
        parts.append(f"eta: {timedelta(seconds=round(where.eta))}")
    parts.append(f"samples: {where.samples}")
    parts += [_pair(name, value) for name, value in row.scalars.items()]
    return "  ".join(parts)


def _pair(name: str, value: float) -> str:
    if name in _UNITS:
        label, unit = _UNITS[name]
        return f"{label}: {value:.4f} {unit}"
    return f"{name}: {number(name, value)}"


def number(name: str, value: float) -> str:
    """A number as people like to read it under that name."""
    if name.split("/", maxsplit=1)[0] == "lr":
        return f"{value:.2e}"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
