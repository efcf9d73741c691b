"""Sources: the records of files and of Hugging Face datasets, by position in a shuffled order."""

from collections.abc import Callable, Sequence
from functools import cache, lru_cache, partial
from pathlib import Path
from typing import Any, Literal, Protocol, TypeAlias

import numpy as np
from torch.utils.data import get_worker_info

from stoker.core.errors import DataError
from stoker.data.streams.files import check_version, is_io_error
from stoker.data.streams.formats import Format, Records
from stoker.data.streams.index import Index, build_index, files_of, format_of
from stoker.data.streams.order import Ints, Order, Window, epoch_key
from stoker.data.streams.parquet import ParquetFormat
from stoker.data.streams.remote import ahead, at_once
from stoker.storage import format_size

OnError: TypeAlias = Literal["raise", "skip"]


class Source(Protocol):
    """Blocks of records.

    Attributes:
        counts: the number of records in each block.
        sizes: the number of bytes of each block.
        fingerprint: changes with the data.
        versions: the versions of the files by name; empty if there are none.
        is_remote: whether records are read from a store, which pays to begin early.
    """

    counts: Ints
    sizes: Ints
    fingerprint: str
    versions: dict[str, str]
    is_remote: bool

    def load(self, blocks: Ints) -> Records:
        """Return the records of some blocks; those that cannot be read are errors."""

    def where(self, block: int, index: int) -> str:
        """Return where a record is, for messages."""

    def summary(self) -> str:
        """Return what the source is, in some words."""


class FileSource:
    """The records of files of one format.

    Args:
        index: the index of the files.
        format: their format.
    """

    def __init__(self, index: Index, format: Format) -> None:
        self.index, self.format = index, format
        self.counts, self.sizes = index.counts, index.sizes
        self.fingerprint, self.versions = index.fingerprint, index.versions
        self.is_remote = any(entry.file.is_remote for entry in index.entries)

    def load(self, blocks: Ints) -> Records:
        """Read blocks."""
        _keep_freed_memory()
        found = [self.index.block(int(number)) for number in blocks]
        for file in dict.fromkeys(file for file, _ in found):
            check_version(file)
        readers: list[Callable[[], list[Any]]] = [
            partial(self.format.read, file, block) for file, block in found
        ]
        if self.is_remote:
            readers = at_once(readers)
            _wait_for(readers)
        return self.format.load(readers, [block.records for _, block in found])

    def where(self, block: int, index: int) -> str:
        """Return the file and the offset."""
        file, found = self.index.block(block)
        return f"'{file.path}' at {self.format.where(file, found, index)}"

    def summary(self) -> str:
        """Return the number of files, their format and size."""
        count, size = len(self.index.entries), format_size(self.index.bytes)
        return f"{count} {self.format.name} files, {size}"


def _wait_for(calls: Sequence[Callable[[], Any]]) -> None:
    """Wait for all calls, and raise the error of a store; what is corrupt is found later."""
    for call in calls:
        try:
            call()
        except Exception as error:
            if is_io_error(error):
                raise


@cache
def _keep_freed_memory() -> None:
    """Let the C library use the memory of a window again, which is twice as fast as new memory.

    glibc returns memory above a limit to the system, and raises the limit when it frees a block
    of up to 32 MB.
    """
    bytearray(31 << 20)  # is never touched, so it costs nothing


class HuggingFaceSource:
    """The rows of a Hugging Face dataset with random access.

    Args:
        dataset: a ``datasets.Dataset``.
    """

    is_remote = False
    _ROWS = 1000

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset
        self._starts = np.arange(0, len(dataset), self._ROWS)
        self.counts = np.minimum(self._ROWS, len(dataset) - self._starts)
        size = getattr(dataset, "size_in_bytes", None) or 0
        self.sizes = self.counts * (size // max(1, len(dataset)))
        self.fingerprint: str = dataset._fingerprint
        self.versions: dict[str, str] = {}

    def load(self, blocks: Ints) -> Records:
        """Return rows that are read when they are decoded."""
        ranges = [np.arange(self._starts[b], self._starts[b] + self.counts[b]) for b in blocks]
        return _HuggingFaceRows(self.dataset, np.concatenate(ranges))

    def where(self, block: int, index: int) -> str:
        """Return the number of the row."""
        return f"row {self._starts[block] + index} of the dataset"

    def summary(self) -> str:
        """Return the kind and the fingerprint."""
        return f"datasets.Dataset {self.fingerprint}"


class _HuggingFaceRows(Records):
    def __init__(self, dataset: Any, rows: Ints) -> None:
        self._dataset, self._rows = dataset, rows

    def pick(self, indices: Ints) -> "_HuggingFaceRows":
        return _HuggingFaceRows(self._dataset, self._rows[indices])

    def decode(self, start: int, stop: int) -> list[Any]:
        rows: list[Any] = self._dataset.__getitems__(self._rows[start:stop].tolist())
        return rows


def open_files(
    source: Any,
    format: str | None,
    columns: Any,
    cache: Path | None,
    on_error: OnError,
    progress: Callable[[int, int], None] | None = None,
) -> FileSource:
    """Return the records of files, after their index was built or read."""
    paths = files_of(source, format)
    kind = format_of(paths, format, columns)
    index = build_index(paths, kind, cache, progress=progress)
    damaged = [(entry.file.path, *one) for entry in index.entries for one in entry.damage]
    if damaged and on_error == "raise":
        path, offset, reason = damaged[0]
        raise DataError(
            f"'{path}' cannot be read from byte {offset}: {reason}; repair the file, or pass "
            "on_error='skip' to leave out the rest of it"
        )
    if isinstance(kind, ParquetFormat) and columns is not None and index.records:
        kind.check_columns(index.block(0)[0])
    if not index.records:
        raise ValueError(f"the source {source!r} has no records, expected at least one")
    return FileSource(index, kind)


class Outcomes(Protocol):
    """The records of some positions, which are decoded and processed on demand."""

    def get(self, start: int, stop: int) -> list[Any]:
        """Return the records from ``start`` to ``stop``, or `Dropped` or `DataError` for each."""

    def where(self, index: int) -> str:
        """Return where a record is, for messages."""


class Dropped:
    """Stands for a record that is left out of a stream.

    Args:
        reason: where it is and what is wrong with it; None if a filter rejected it.
    """

    def __init__(self, reason: str | None = None) -> None:
        self.reason = reason


class Reader(Protocol):
    """Records by position.

    Attributes:
        drops: whether some positions may have no record.
    """

    drops: bool

    @property
    def length(self) -> int:
        """The number of positions of a pass; very large while it is not known."""

    @property
    def sources(self) -> list[Source]:
        """The sources that records come from."""

    @property
    def described(self) -> dict[str, Any]:
        """What the records depend on, for the identity of a run."""

    def span(self, epoch: int, position: int) -> tuple[int, int]:
        """Return the positions that are best read together with one, as first and end."""

    def read(self, epoch: int, positions: Ints) -> Outcomes:
        """Return the records of some positions in one span."""

    def mark(self, epoch: int, position: int) -> str:
        """Return what else is needed to find a position again; empty if nothing is."""

    def seek(self, epoch: int, position: int, mark: str) -> None:
        """Prepare to read from a position with what `mark` returned for it."""


class SourceReader:
    """The records of a source in shuffled order.

    Args:
        source: the source.
        window: how many records are shuffled at a time, 0 for none.
        seed: the seed of the order.
        on_error: what to do with a record that cannot be decoded.
    """

    def __init__(self, source: Source, window: int, seed: int, on_error: OnError) -> None:
        self.source, self.window, self.seed, self.on_error = source, window, seed, on_error
        self.length = int(source.counts.sum())
        self.drops = on_error == "skip"
        self._clear()

    @property
    def sources(self) -> list[Source]:
        """The source."""
        return [self.source]

    @property
    def described(self) -> dict[str, Any]:
        """The fingerprint of the data and the settings of its order."""
        return {
            "fingerprint": self.source.fingerprint,
            "shuffle": self.window,
            "seed": self.seed,
            "on_error": self.on_error,
        }

    def span(self, epoch: int, position: int) -> tuple[int, int]:
        """Return the window of a position."""
        return self._order(epoch).span(position)

    def read(self, epoch: int, positions: Ints) -> Outcomes:
        """Return records of one window, which is kept for the next call."""
        window, records = self._window(epoch, self.span(epoch, int(positions[0]))[0])
        picks = window.records[positions - window.start]
        return _SourceOutcomes(records.pick(picks), self.source, window.blocks, picks, self.drops)

    def mark(self, epoch: int, position: int) -> str:
        """Return nothing: the order is computed."""
        return ""

    def seek(self, epoch: int, position: int, mark: str) -> None:
        """Do nothing: any position can be read."""

    def _clear(self) -> None:
        self._order = lru_cache(2)(self._make_order)
        self._loaded: dict[tuple[int, int], tuple[Window, Records]] = {}  # at most one window
        self._next: dict[tuple[int, int], Callable[[], Any]] = {}  # begun, of a store

    def _make_order(self, epoch: int) -> Order:
        key = epoch_key(self.seed, epoch)
        return Order(self.source.counts, self.source.sizes, self.window, key)

    def _window(self, epoch: int, start: int) -> tuple[Window, Records]:
        if (epoch, start) not in self._loaded:
            self._loaded.clear()  # first, so that its memory is used again while it is in the cache
            self._loaded[epoch, start] = self._next_window(epoch, start)
        return self._loaded[epoch, start]

    def _next_window(self, epoch: int, start: int) -> tuple[Window, Records]:
        """Load a window; of a store, begin to load the one after it."""
        load = self._next.pop((epoch, start), partial(self._load, epoch, start))
        self._next.clear()
        loaded: tuple[Window, Records] = load()
        after = loaded[0].stop
        if self.source.is_remote and after < self.length and get_worker_info() is None:
            self._next[epoch, after] = ahead(partial(self._load, epoch, after))
        return loaded

    def _load(self, epoch: int, start: int) -> tuple[Window, Records]:
        window = self._order(epoch).window(start)
        return window, self.source.load(window.blocks)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if not name.startswith("_")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._clear()


class _SourceOutcomes:
    def __init__(
        self, records: Records, source: Source, blocks: Ints, picks: Ints, skips: bool
    ) -> None:
        self._records, self._source, self._skips = records, source, skips
        self._blocks, self._picks = blocks, picks

    def get(self, start: int, stop: int) -> list[Any]:
        try:
            return self._records.decode(start, stop)
        except Exception:  # one of them is corrupt: find it
            return [self._get_one(index) for index in range(start, stop)]

    def _get_one(self, index: int) -> Any:
        try:
            return self._records.decode(index, index + 1)[0]
        except Exception as error:
            reason = (
                str(error) if isinstance(error, DataError) else f"{type(error).__name__}: {error}"
            )
            message = f"{self.where(index)} is corrupt: {reason}"
            return Dropped(message) if self._skips else DataError(message)

    def where(self, index: int) -> str:
        ends = np.cumsum(self._source.counts[self._blocks])
        pick = int(self._picks[index])
        number = int(np.searchsorted(ends, pick, side="right"))
        block = int(self._blocks[number])
        return self._source.where(block, pick - int(ends[number] - self._source.counts[block]))
