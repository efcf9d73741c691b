"""What `fit`, `evaluate` and `explain` return: plain values that print well, also in notebooks."""

from typing import Any, Literal

from stoker.events.notebook import charts_html, pre_html, table_html
from stoker.events.writers.console import format_number

_MAX_ROWS = 20
"""How many epochs a notebook shows; the curves show all."""


class Results(dict[str, float]):
    """The results of an evaluation by name, a dict that notebooks show as a table."""

    def _repr_html_(self) -> str:
        return table_html(("", "value"), [(name, _cell(name, self[name])) for name in self])


class Explanation(str):
    """A text that notebooks show line by line."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        return pre_html(self)


class History(list[dict[str, float]]):
    """A list with one dict of results per epoch, which prints as a table.

    >>> history = History([{"epoch": 1, "val/loss": 0.5}, {"epoch": 2, "val/loss": 0.25}])
    >>> history["val/loss"]
    [0.5, 0.25]
    >>> history.best("val/loss", "min")["epoch"]
    2
    """

    stop_reason: str | None = None
    """Why the run stopped before its limit, or None if it did not."""

    def __getitem__(self, key: Any) -> Any:
        """Return an epoch by index, or all values of a result by name."""
        if not isinstance(key, str):
            return super().__getitem__(key)
        if key not in self.names:
            raise KeyError(f"no epoch has {key!r} (results: {', '.join(self.names) or 'none'})")
        return [row[key] for row in self if key in row]

    @property
    def names(self) -> list[str]:
        """The names of the results, in order of first appearance."""
        return list(dict.fromkeys(name for row in self for name in row))

    def best(self, name: str, mode: Literal["min", "max"]) -> dict[str, float]:
        """Return the epoch with the smallest (or with ``mode="max"``, the largest) ``name``."""
        if mode not in ("min", "max"):
            raise ValueError(f"mode must be 'min' or 'max', got {mode!r}")
        self[name]  # raises KeyError for an unknown name
        pick = max if mode == "max" else min
        return pick((row for row in self if name in row), key=lambda row: row[name])

    def __str__(self) -> str:
        cells = [self.names] + [[_cell(name, row.get(name)) for name in self.names] for row in self]
        widths = [max(len(line[i]) for line in cells) for i in range(len(self.names))]
        lines = ["  ".join(c.rjust(w) for c, w in zip(line, widths, strict=True)) for line in cells]
        return "\n".join(lines) if self else "(no epoch was trained)"

    def _repr_html_(self) -> str:
        """Return a table of the last epochs, and the curves of all results."""
        if not self:
            return pre_html(str(self))
        names, shown = self.names, self[-_MAX_ROWS:]
        rows = [[_cell(name, row.get(name)) for name in names] for row in shown]
        skipped = len(self) - len(shown)
        notes = [f"{skipped} earlier epochs are not in the table"] if skipped else []
        notes += [f"stopped: {self.stop_reason}"] if self.stop_reason else []
        series = {
            name: [(row.get("epoch", at), row[name]) for at, row in enumerate(self) if name in row]
            for name in names
            if name not in ("epoch", "step")
        }
        return table_html(names, rows) + "".join(map(pre_html, notes)) + charts_html(series)


def _cell(name: str, value: float | None) -> str:
    if value is None:
        return ""
    return str(value) if isinstance(value, int) else format_number(name, value)
