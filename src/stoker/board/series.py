"""`MetricsFile`: a ``metrics.jsonl`` that grows, read once, with an index kept in a cache."""

import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from time import monotonic

import xxhash

from stoker.board.columns import Columns, load_arrays, save_arrays

CHUNK = 1 << 20
_SPACING = 1 << 20
_LOOK_BACK = 4096
_WORTH_KEEPING = 1 << 20


@dataclass(frozen=True, slots=True)
class _Mark:
    """How far the file was read, with how many rows, and what stood before that place."""

    offset: int
    rows: int
    digest: int


class MetricsFile:
    """The numbers of one run, read on from where the last look ended.

    A run that goes on after a kill cuts its file and writes on: the last mark whose surroundings
    are as they were tells how far back to go, so that nothing is read twice but what was cut.

    Args:
        opens: gives a descriptor of the file.
        cache: where the index is kept; None keeps it in memory alone.
    """

    def __init__(self, opens: Callable[[], int], cache: Path | None = None) -> None:
        self.columns = Columns()
        self.lock = threading.Lock()
        self.share_read = 0.0
        self.bytes_read = 0
        self._opens, self._cache = opens, cache
        self._marks: list[_Mark] = []
        self._skipping = False
        self._seen: tuple[int, int, int] | None = None
        self._kept_offset = 0
        self._tried_cache = cache is None

    @property
    def whole(self) -> bool:
        """Whether all there is has been read."""
        return self.share_read >= 1.0

    def refresh(self, seconds: float = 0.1) -> bool:
        """Read what is new, for about so long; whether anything has changed."""
        try:
            file = self._opens()
        except (OSError, ValueError):
            return self._forget()
        try:
            with self.lock:
                return self._refresh(file, monotonic() + seconds)
        except OSError:
            self.share_read = 1.0  # as far as it can be read
            return False
        finally:
            os.close(file)

    def keep(self) -> None:
        """Put the index into the cache, if it is worth it and not there yet."""
        with self.lock:
            offset = self._offset
            worth = max(_WORTH_KEEPING, self._kept_offset // 10)
            if self._cache is None or offset - self._kept_offset < worth:
                return
            arrays = self.columns.arrays()
            marks = [[mark.offset, mark.rows, mark.digest] for mark in self._marks]
            state = {"marks": marks, "bad": self.columns.bad}
        self._kept_offset = offset
        aside = self._cache.with_suffix(f".{os.getpid()}.partial")
        try:
            self._cache.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            save_arrays(aside, state, arrays)
            os.replace(aside, self._cache)
        except OSError:  # a cache is a help and no need
            aside.unlink(missing_ok=True)

    @property
    def _offset(self) -> int:
        return self._marks[-1].offset if self._marks else 0

    def _forget(self) -> bool:
        had = len(self.columns) > 0
        self.columns, self._marks, self._seen = Columns(), [], None
        self._kept_offset, self.share_read = 0, 1.0
        return had

    def _refresh(self, file: int, until: float) -> bool:
        found = os.fstat(file)
        seen = (found.st_ino, found.st_size, found.st_mtime_ns)
        if seen == self._seen and self.whole:
            return False
        if not self._tried_cache:
            self._tried_cache = True
            self._take_from_cache()
        rows_before = len(self.columns)
        changed = self._go_back(file, found.st_size)
        while self._read_on(file, found.st_size) and monotonic() < until:
            pass
        self._seen = seen
        return changed or len(self.columns) != rows_before

    def _go_back(self, file: int, size: int) -> bool:
        """Forget what the file no longer holds."""
        changed = False
        while self._marks:
            mark = self._marks[-1]
            if mark.offset <= size and _digest(file, mark.offset) == mark.digest:
                break
            self._marks.pop()
            changed = True
        if changed:
            self.columns.cut(self._marks[-1].rows if self._marks else 0)
            self._kept_offset, self._skipping = 0, False
        return changed

    def _read_on(self, file: int, size: int) -> bool:
        """Read one piece; whether there may be more."""
        at = self._offset
        piece = os.pread(file, min(CHUNK, max(0, size - at)), at)
        self.bytes_read += len(piece)
        end = piece.rfind(b"\n") + 1
        if end == 0:
            if len(piece) < CHUNK:
                self.share_read = 1.0
                return False
            end, self._skipping = len(piece), True  # a line as long as this is none of ours
            self._mark(file, at + end)
            return True
        lines = piece[: end - 1].split(b"\n")
        if self._skipping:
            lines, self._skipping = lines[1:], False
            self.columns.bad += 1
        self.columns.extend(lines)
        self._mark(file, at + end)
        self.share_read = (at + end) / size if len(piece) == CHUNK else 1.0
        return self.share_read < 1.0

    def _mark(self, file: int, offset: int) -> None:
        marks = self._marks
        marks.append(_Mark(offset, len(self.columns), _digest(file, offset)))
        if len(marks) > 2 and marks[-2].offset - marks[-3].offset < _SPACING:
            del marks[-2]

    def _take_from_cache(self) -> None:
        if self._cache is None or not self._cache.is_file():
            return
        try:
            state, arrays = load_arrays(self._cache)
            marks = [_Mark(*mark) for mark in state["marks"]]
            columns = Columns.of(arrays)
            os.utime(self._cache)
        except Exception:  # whatever is wrong with it, the file itself can be read
            return
        if marks and marks[-1].rows == len(columns):
            self.columns, self._marks, self._kept_offset = columns, marks, marks[-1].offset
            columns.bad = state["bad"]


def _digest(file: int, offset: int) -> int:
    start = max(0, offset - _LOOK_BACK)
    return xxhash.xxh3_64_intdigest(os.pread(file, offset - start, start))
