"""`Csv`: a table for spreadsheets."""

import csv
from pathlib import Path

from stoker.events.storage import Row
from stoker.events.writers.base import RunProgress, Writer
from stoker.rundir import files
from stoker.storage import atomic_file


class Csv(Writer):
    """Append to ``metrics.csv``, with one line per row and one column per name.

    A new name adds a column at the end; the file is then rewritten and replaced atomically.
    """

    file = files.METRICS_CSV

    def open(self, path: Path) -> None:
        """Read the columns of an existing file."""
        self._path = path
        self._columns = ["step", "epoch", "samples"]
        if path.exists():
            with path.open(encoding="utf-8", newline="") as file:
                self._columns = next(csv.reader(file), self._columns)

    def length(self, path: Path, until: int | None = None) -> int:
        """Return the number of lines without the header."""
        lines = self._lines(path)
        return sum(until is None or int(line["step"]) <= until for line in lines)

    def cut(self, path: Path, length: int, step: int) -> None:
        """Drop the lines of a killed attempt."""
        lines = self._lines(path)
        if len(lines) > length:
            self._path, self._columns = path, list(lines[0])
            self._rewrite(lines[:length])

    def write(self, rows: list[Row], progress: RunProgress) -> None:
        """Append the rows."""
        head = {"epoch": progress.epoch, "samples": progress.samples}
        lines = [{"step": row.step, **head, **row.scalars} for row in rows]
        new = [name for line in lines for name in line if name not in self._columns]
        if new or not self._path.exists():
            self._columns += dict.fromkeys(new)
            self._rewrite(self._lines(self._path))
        with self._path.open("a", encoding="utf-8", newline="") as file:
            csv.DictWriter(file, self._columns, restval="").writerows(lines)

    def _lines(self, path: Path) -> list[dict[str, str]]:
        if not path.exists():
            return []
        with path.open(encoding="utf-8", newline="") as file:
            return list(csv.DictReader(file))

    def _rewrite(self, old: list[dict[str, str]]) -> None:
        with (
            atomic_file(self._path) as temporary,
            temporary.open("w", encoding="utf-8", newline="") as file,
        ):
            writer = csv.DictWriter(file, self._columns, restval="")
            writer.writeheader()
            writer.writerows(old)
