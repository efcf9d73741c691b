"""Metrics as a table for spreadsheets."""

import csv
import os
from pathlib import Path

from stoker.events.storage import Row
from stoker.events.writer import Where, Writer


class Csv(Writer):
    """Appends to ``metrics.csv``: a line per row, a column per name.

    A name that appears later gets a column at the end, and the file is written anew, aside and
    then renamed.
    """

    file = "metrics.csv"

    def open(self, path: Path) -> None:
        """Take up the columns of an existing file."""
        self._path = path
        self._columns = ["step", "epoch", "samples"]
        if path.exists():
            with path.open(encoding="utf-8", newline="") as file:
                self._columns = next(csv.reader(file), self._columns)

    def write(self, rows: list[Row], where: Where) -> None:
        """Append the rows."""
        head = {"epoch": where.epoch, "samples": where.samples}
        lines = [{"step": row.step, **head, **row.scalars} for row in rows]
        new = [name for line in lines for name in line if name not in self._columns]
        if new or not self._path.exists():
            self._columns += dict.fromkeys(new)
            self._rewrite()
        with self._path.open("a", encoding="utf-8", newline="") as file:
            csv.DictWriter(file, self._columns, restval="").writerows(lines)

    def _rewrite(self) -> None:
        old: list[dict[str, str]] = []
        if self._path.exists():
            with self._path.open(encoding="utf-8", newline="") as file:
                old = list(csv.DictReader(file))
        aside = self._path.with_suffix(".csv.partial")
        with aside.open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, self._columns, restval="")
            writer.writeheader()
            writer.writerows(old)
        os.replace(aside, self._path)
