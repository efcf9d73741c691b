"""Parquet files: a block is a row group."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from math import inf
from typing import Any

from stoker.core.errors import DataError
from stoker.data.streams.files import DataFile, RangeFile, is_io_error, open_range
from stoker.data.streams.formats import (
    BLOCK_BYTES,
    Block,
    Format,
    ListedRecords,
    Records,
    Scan,
    or_errors,
)
from stoker.data.streams.order import WINDOW_BYTES, Ints

_OPEN_FILES = 32
_OBJECT_BYTES = 48
"""Bytes of a Python object besides its contents; a dict takes several times as many."""
_MOST_DECODED = 2 * WINDOW_BYTES
_FOOTER_BYTES = 1 << 16
"""Bytes at the end of a file in a store that are read first: they list its row groups."""


class ParquetFormat(Format):
    """Rows of Parquet files, as dicts; a block is a row group.

    Args:
        columns: the columns to read, None for all.
    """

    name = "parquet"
    suffixes = (".parquet", ".pq")

    def __init__(self, columns: Sequence[str] | None = None) -> None:
        if columns is not None and not columns:
            raise ValueError("columns is empty, expected at least one name, or None for all")
        self._columns = list(columns) if columns is not None else None
        if (repeated := _repeated(self._columns or ())) is not None:
            raise ValueError(f"columns lists {repeated!r} more than once")
        self._files: dict[str, Any] = {}

    def scan(self, file: DataFile, advance: Callable[[int], None]) -> Scan:
        """Return the row groups, which the end of the file lists."""
        try:
            found = self._open(file)
            metadata, names = found.metadata, found.schema_arrow.names
        except ImportError:
            raise
        except Exception as error:
            if is_io_error(error):
                raise
            return Scan(damage=[(0, f"{type(error).__name__}: {error}")])
        finally:
            advance(file.size)
        if (repeated := _repeated(names)) is not None:
            return Scan(damage=[(0, f"two columns are called {repeated!r}")])
        if not names:
            return Scan(damage=[(0, "it has no columns")])
        groups = (metadata.row_group(number) for number in range(metadata.num_row_groups))
        blocks = [Block(n, one.total_byte_size, one.num_rows) for n, one in enumerate(groups)]
        return Scan([block for block in blocks if block.records])

    def read(self, file: DataFile, block: Block) -> Any:
        """Return the table of a row group."""
        found = self._file(file)
        if file.is_remote:
            metadata = found.metadata
            ranges = [
                (start, open_range(file, start, stop - start))
                for start, stop in _ranges(metadata.row_group(block.start), self._columns)
            ]
            found = self._open(file, ranges, metadata=metadata)
        table = found.read_row_group(block.start, columns=self._columns, use_threads=False)
        if self._columns is None or table.column_names == self._columns:
            return table
        if missing := [name for name in self._columns if name not in table.column_names]:
            raise DataError(f"it has no column {missing[0]!r}")
        return table.select(self._columns)  # Arrow also takes the field b of a for a.b

    def load(self, blocks: Sequence[Callable[[], Any]], counts: Sequence[int]) -> Records:
        """Return the rows of several row groups, which are read when rows are picked."""
        return _RowGroups(blocks, counts)

    def where(self, file: DataFile, block: Block, index: int) -> str:
        """Return the row group and the row in it."""
        return f"row {index} of row group {block.start}"

    def check_columns(self, file: DataFile) -> None:
        """Raise a `ValueError` if a column does not exist."""
        known = self._file(file).schema_arrow.names
        unknown = [name for name in self._columns or () if name not in known]
        if unknown:
            raise ValueError(
                f"'{file.path}' has no column {unknown[0]!r}: it has {', '.join(known)}"
            )

    def _file(self, file: DataFile) -> Any:
        """Return an open file, of which some are kept."""
        found = self._files.get(file.path)
        if found is None:
            for oldest in list(self._files)[: 1 - _OPEN_FILES]:
                self._files.pop(oldest, None)  # another thread may have removed it
            found = self._files[file.path] = self._open(file)
        return found

    def _open(self, file: DataFile, ranges: Any = (), metadata: Any = None) -> Any:
        try:
            from pyarrow.parquet import ParquetFile
        except ImportError as error:
            raise ImportError(
                "Parquet files need pyarrow: pip install 'stoker[parquet]'"
            ) from error
        if not file.is_remote:
            return ParquetFile(file.path)
        if metadata is None:
            start = max(0, file.size - _FOOTER_BYTES)
            ranges = [(start, open_range(file, start, file.size - start))]
        return ParquetFile(RangeFile(file, ranges), metadata=metadata, pre_buffer=False)

    def __getstate__(self) -> dict[str, Any]:
        return {"_columns": self._columns, "_files": {}}


def _repeated(names: Iterable[str]) -> str | None:
    """Return a name that comes more than once."""
    return next((name for name, times in Counter(names).items() if times > 1), None)


def _ranges(group: Any, columns: Sequence[str] | None) -> list[tuple[int, int]]:
    """Return the bytes of the columns of a row group, as few ranges."""
    found: list[tuple[int, int]] = []
    for number in range(group.num_columns):
        column = group.column(number)
        if columns is None or column.path_in_schema.partition(".")[0] in columns:
            offsets = (column.dictionary_page_offset, column.data_page_offset)
            start = min(offset for offset in offsets if offset)
            found.append((start, start + column.total_compressed_size))
    joined: list[tuple[int, int]] = []
    for start, stop in sorted(found):
        near = joined and start - joined[-1][1] <= BLOCK_BYTES
        joined.append((joined.pop()[0] if near else start, stop))
    return joined


class _RowGroups(Records):
    """Rows of several row groups.

    Args:
        blocks: functions that read the table of a row group each.
        counts: the number of rows in each.
    """

    def __init__(self, blocks: Sequence[Callable[[], Any]], counts: Sequence[int]) -> None:
        self._blocks, self._counts = blocks, counts

    def pick(self, indices: Ints) -> Records:
        """Return some rows; all of them are decoded at once, which is faster, if they are small."""
        if len(indices) == sum(self._counts) and (rows := self._decoded()) is not None:
            return ListedRecords(rows, picks=indices)
        return self._read.pick(indices)

    def decode(self, start: int, stop: int) -> list[Any]:
        """Return rows in the order of the file."""
        return self._read.decode(start, stop)

    def _decoded(self) -> list[Any] | None:
        """Decode each table while it is in the cache of the processor; None if that is too much."""
        rows: list[Any] = []
        size = 0.0
        for table in self._tables():
            size += _decoded_size(table)
            found = _to_rows(table) if size <= _MOST_DECODED else None
            if found is None:
                return None
            rows += found
        return rows

    def _tables(self) -> Iterator[Any]:
        """Yield the table of each row group, or a list of errors."""
        for read, count in zip(self._blocks, self._counts, strict=True):
            yield or_errors(read, count)

    @cached_property
    def _read(self) -> Records:
        from pyarrow import concat_tables

        tables = list(self._tables())
        schemas: list[Any] = [getattr(table, "schema", None) for table in tables]
        if None not in schemas and all(schemas[0].equals(schema) for schema in schemas):
            return _Rows(concat_tables(tables))
        rows = (one if isinstance(one, list) else one.to_pylist() for one in tables)
        return ListedRecords([row for some in rows for row in some])


def _decoded_size(table: Any) -> float:
    """Return about how many bytes the decoded rows of a table take; infinite if they are nested."""
    from pyarrow.types import is_dictionary, is_nested

    if isinstance(table, list):  # of errors
        return 0.0
    if any(is_nested(kind) or is_dictionary(kind) for kind in table.schema.types):
        return inf
    return float(table.nbytes + _OBJECT_BYTES * table.num_rows * (2 * table.num_columns + 3))


def _to_rows(table: Any) -> list[Any] | None:
    """Decode a table; return None if a value is corrupt, which is found row by row."""
    try:
        rows: list[Any] = table if isinstance(table, list) else table.to_pylist()
    except Exception:
        return None
    return rows


class _Rows(Records):
    """Rows of an Arrow table."""

    def __init__(self, table: Any) -> None:
        self._table = table

    def pick(self, indices: Ints) -> Records:
        from pyarrow import ArrowNotImplementedError

        try:
            return _Rows(self._table.take(indices))
        except ArrowNotImplementedError:  # of views of strings, for example
            return _SlicedRows(self._table, indices)

    def decode(self, start: int, stop: int) -> list[Any]:
        rows: list[Any] = self._table.slice(start, max(0, stop - start)).to_pylist()
        return rows


class _SlicedRows(Records):
    """Rows of an Arrow table with a column that Arrow cannot gather, sliced one by one."""

    def __init__(self, table: Any, indices: Ints) -> None:
        self._table, self._indices = table, indices

    def pick(self, indices: Ints) -> Records:
        return _SlicedRows(self._table, self._indices[indices])

    def decode(self, start: int, stop: int) -> list[Any]:
        numbers = self._indices[start:stop].tolist()
        return [self._table.slice(number, 1).to_pylist()[0] for number in numbers]
