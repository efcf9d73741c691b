"""Metrics as JSON lines: one object per line, appended, whole up to the last line after a kill."""

import json
import math
import os
import time
from pathlib import Path
from typing import IO, Any

from stoker.events.storage import Row
from stoker.events.writers.base import Where, Writer


class JsonLines(Writer):
    """Appends to ``metrics.jsonl``.

    Each line has ``step``, ``epoch``, ``samples`` and ``time`` (seconds since 1970) and the
    numbers of that step. What is no number in JSON is written as a string: ``"NaN"``,
    ``"Infinity"``, ``"-Infinity"``.
    """

    file = "metrics.jsonl"

    def __init__(self, path: str | Path | None = None) -> None:
        super().__init__(path)
        self._file: IO[str] | None = None

    def open(self, path: Path) -> None:
        """Open for appending; a last line that a kill left torn is cut off."""
        _cut_torn_line(path)
        self._file = path.open("a", encoding="utf-8", newline="\n")

    def length(self, path: Path, until: int | None = None) -> int:
        """Bytes."""
        if not path.exists():
            return 0
        if until is None:
            return path.stat().st_size
        lines = path.read_bytes().splitlines(keepends=True)
        whole = [line for line in lines if line.endswith(b"\n")]
        return sum(len(line) for line in whole if json.loads(line)["step"] <= until)

    def cut(self, path: Path, length: int, step: int) -> None:
        """Cut off the lines of an attempt that was killed."""
        if path.exists() and path.stat().st_size > length:
            os.truncate(path, length)

    def write(self, rows: list[Row], where: Where) -> None:
        """One line per row, handed to the operating system before it returns."""
        assert self._file is not None
        for row in rows:
            scalars = {name: _json_number(value) for name, value in row.scalars.items()}
            self._file.write(json.dumps(self.head(row, where) | scalars) + "\n")
        self._file.flush()

    def head(self, row: Row, where: Where) -> dict[str, Any]:
        """What a line begins with."""
        now = round(time.time(), 3)
        return {"step": row.step, "epoch": where.epoch, "samples": where.samples, "time": now}

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
            self._file = None


def read_json_lines(path: str | Path) -> list[dict[str, float]]:
    """The rows of a ``metrics.jsonl``; a torn last line is left out."""
    rows = []
    for line in Path(path).read_text(encoding="utf-8").split("\n")[:-1]:
        row = json.loads(line)
        rows.append({name: float(v) if isinstance(v, str) else v for name, v in row.items()})
    return rows


def _json_number(value: float) -> float | str:
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _cut_torn_line(path: Path) -> None:
    if not path.exists():
        return
    with path.open("rb+") as file:
        whole = file.read()
        if whole and not whole.endswith(b"\n"):
            file.truncate(whole.rfind(b"\n") + 1)
