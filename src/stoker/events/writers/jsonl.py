"""`JsonLines`: one JSON object per line."""

import json
import math
import os
import time
from contextlib import suppress
from io import FileIO
from pathlib import Path
from typing import Any

from stoker.events.storage import Row
from stoker.events.writers.base import RunProgress, Writer
from stoker.rundir import files


class JsonLines(Writer):
    """Append to ``metrics.jsonl``.

    Each line has ``step``, ``epoch``, ``samples``, ``time`` (seconds since 1970) and the numbers of
    that step. Values that JSON cannot express are strings: ``"NaN"``, ``"Infinity"``,
    ``"-Infinity"``. A kill can only damage the last line, which is dropped on resume.
    """

    file = files.METRICS

    def __init__(self, path: str | Path | None = None) -> None:
        super().__init__(path)
        self._file: FileIO | None = None

    def open(self, path: Path) -> None:
        """Open the file for appending, and drop an incomplete last line."""
        _drop_incomplete_line(path)
        self._file = path.open("ab", buffering=0)

    def length(self, path: Path, until: int | None = None) -> int:
        """Return the size in bytes."""
        if not path.exists():
            return 0
        if until is None:
            return path.stat().st_size
        lines = path.read_bytes().splitlines(keepends=True)
        complete = [line for line in lines if line.endswith(b"\n")]
        return sum(len(line) for line in complete if json.loads(line)["step"] <= until)

    def written(self, path: Path) -> list[tuple[int, set[str]]] | None:
        """Return the step and the names of each line."""
        rows = read_json_lines(path)
        return [(int(row["step"]), {*row} - {"step", "epoch", "samples", "time"}) for row in rows]

    def cut(self, path: Path, length: int, step: int) -> None:
        """Drop the lines of a killed attempt."""
        if path.exists() and path.stat().st_size > length:
            os.truncate(path, length)

    def write(self, rows: list[Row], progress: RunProgress) -> None:
        """Append one line per row; if that fails, for example on a full disk, append none."""
        assert self._file is not None
        lines = []
        for row in rows:
            scalars = {name: _json_number(value) for name, value in row.scalars.items()}
            lines.append(json.dumps(self.head(row, progress) | scalars) + "\n")
        append(self._file, "".join(lines).encode())

    def head(self, row: Row, progress: RunProgress) -> dict[str, Any]:
        """Return the first entries of a line."""
        now = round(time.time(), 3)
        return {"step": row.step, "epoch": progress.epoch, "samples": progress.samples, "time": now}

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
            self._file = None


def append_line(path: Path, line: str) -> None:
    """Append a line, after a line end if a kill left the last line incomplete."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab+", buffering=0) as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - 1))
        torn = file.read(1) not in (b"", b"\n")
        append(file, b"\n" * torn + line.encode() + b"\n")


def append(file: FileIO, data: bytes) -> None:
    """Append all of the data to a file that is open for appending, or none of it."""
    size = os.fstat(file.fileno()).st_size
    left = memoryview(data)
    try:
        while left:
            left = left[file.write(left) :]
    except OSError:
        with suppress(OSError):
            os.ftruncate(file.fileno(), size)
        raise


def read_json_lines(path: str | Path) -> list[dict[str, float]]:
    """Return the rows of a ``metrics.jsonl``, without an incomplete last line."""
    rows = []
    for line in Path(path).read_text(encoding="utf-8").split("\n")[:-1]:
        row = json.loads(line)
        rows.append({name: float(v) if isinstance(v, str) else v for name, v in row.items()})
    return rows


def _json_number(value: float) -> float | str:
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _drop_incomplete_line(path: Path) -> None:
    if not path.is_file():
        return
    with path.open("rb+") as file:
        content = file.read()
        if content and not content.endswith(b"\n"):
            file.truncate(content.rfind(b"\n") + 1)
