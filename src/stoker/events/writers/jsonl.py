"""`JsonLines`: one JSON object per line."""

import json
import os
import time
from contextlib import suppress
from functools import lru_cache
from io import FileIO
from math import inf, isfinite, isnan
from pathlib import Path
from time import monotonic
from typing import Any

from stoker.core import dist
from stoker.events.storage import Row
from stoker.events.writers.base import RunProgress, Writer
from stoker.rundir import files
from stoker.storage import local_path

_SECONDS = 0.5
"""How long lines may wait, so that not each of many costs a call of the system."""


class JsonLines(Writer):
    """Append to ``metrics.jsonl``.

    Each line has ``step``, ``epoch``, ``samples``, ``time`` (seconds since 1970) and the numbers of
    that step. Values that JSON cannot express are strings: ``"NaN"``, ``"Infinity"``,
    ``"-Infinity"``. Lines reach the file at once, or of many within half a second together. A kill
    can only damage the last line, which is dropped on resume.
    """

    file = files.METRICS

    def __init__(self, path: str | Path | None = None) -> None:
        super().__init__(path)
        self._file: FileIO | None = None
        self._waiting: list[tuple[float, Row, RunProgress]] = []
        self._written = -inf

    def open(self, path: Path) -> None:
        """Open the file for appending, and drop an incomplete last line."""
        _drop_incomplete_line(path)
        self._file = path.open("ab", buffering=0)

    def length(self, path: Path, until: int | None = None) -> int:
        """Return the size in bytes, with the lines that are not in the file yet."""
        self.flush()
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
        now = time.time()
        for row in rows:
            self._waiting.append(
                (now, row, progress)
            )  # as text later, many at once: that is quicker
        if monotonic() - self._written >= _SECONDS or dist.members() is not None:
            self.flush()  # in an elastic run, another process continues after the last line

    def flush(self) -> None:
        """Append the lines that are not in the file yet."""
        if self._waiting:
            assert self._file is not None
            self._append_to(self._file)
            self._written = monotonic()

    def head(self, row: Row, progress: RunProgress, now: float) -> dict[str, Any]:
        """Return the first entries of a line, written at the time ``now``."""
        return {
            "step": row.step,
            "epoch": progress.epoch,
            "samples": progress.samples,
            "time": round(now, 3),
        }

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            file, self._file, self._written = self._file, None, -inf
            with file:
                self._append_to(file)

    def _append_to(self, file: FileIO) -> None:
        waiting, self._waiting = self._waiting, []
        lines = [_line(self.head(row, at, now) | row.scalars) for now, row, at in waiting]
        append(file, "".join(lines).encode())


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
    for line in local_path(path).read_text(encoding="utf-8").split("\n")[:-1]:
        row = json.loads(line)
        rows.append({name: float(v) if isinstance(v, str) else v for name, v in row.items()})
    return rows


def _line(values: dict[str, Any]) -> str:
    """Return a line, as `json.dumps` writes it in three times the time."""
    return f"{{{', '.join([f'{_key(name)}: {_text(value)}' for name, value in values.items()])}}}\n"


_key = lru_cache(maxsize=10_000)(json.dumps)


def _text(value: Any) -> str:
    if type(value) is int:
        return int.__repr__(value)
    if type(value) is not float:
        return json.dumps(value)
    if isfinite(value):
        return float.__repr__(value)
    return '"NaN"' if isnan(value) else '"Infinity"' if value > 0 else '"-Infinity"'


def _drop_incomplete_line(path: Path) -> None:
    if not path.is_file():
        return
    with path.open("rb+") as file:
        content = file.read()
        if content and not content.endswith(b"\n"):
            file.truncate(content.rfind(b"\n") + 1)
