"""File formats: JSON lines, text and Parquet.

A format divides a file into blocks of records, once, and reads the records of a block. A block is
what is read at a time: about a megabyte of lines, or a row group.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from json import JSONDecoder
from typing import Any, NamedTuple

from stoker.core.errors import DataError
from stoker.data.streams.files import DataFile, RangeFile, is_io_error, open_range
from stoker.data.streams.order import Ints

BLOCK_BYTES = 1 << 20
"""The number of bytes after which a block of lines or tar members ends."""


BLOCK_LINES = 1024
"""The number of lines after which a block ends, so that a window of short lines has several."""

_OPEN_FILES = 32
_FOOTER_BYTES = 1 << 16
"""Bytes at the end of a Parquet file in a store that are read first: they list its row groups."""


class Block(NamedTuple):
    """A range of a file, in bytes, and the number of records in it."""

    start: int
    length: int
    records: int


@dataclass(slots=True)
class Scan:
    """What indexing found in a file.

    Args:
        blocks: the blocks, in order.
        damage: where the file cannot be read, and why.
    """

    blocks: list[Block] = field(default_factory=list)
    damage: list[tuple[int, str]] = field(default_factory=list)


class Records(ABC):
    """Records that have been read but not decoded."""

    @abstractmethod
    def pick(self, indices: Ints) -> "Records":
        """Return some of the records, in this order."""

    @abstractmethod
    def decode(self, start: int, stop: int) -> list[Any]:
        """Return the records from ``start`` to ``stop``; raise an error if one is corrupt."""


class ListedRecords(Records):
    """Records in a list; a `DataError` stands for one that could not be read.

    Args:
        items: the records.
        decoder: the function that decodes one, None if they are decoded already.
        complete: whether there is no `DataError` among them.
    """

    def __init__(
        self, items: list[Any], decoder: Callable[[Any], Any] | None, *, complete: bool
    ) -> None:
        self._items, self._decoder, self._complete = items, decoder, complete

    @classmethod
    def of(cls, items: list[Any], decoder: Callable[[Any], Any] | None = None) -> "ListedRecords":
        """Return records among which there may be errors."""
        return cls(items, decoder, complete=DataError not in set(map(type, items)))

    def pick(self, indices: Ints) -> "ListedRecords":
        """Return some of the records."""
        items = self._items
        picked = [items[index] for index in indices.tolist()]
        return ListedRecords(picked, self._decoder, complete=self._complete)

    def decode(self, start: int, stop: int) -> list[Any]:
        """Return decoded records."""
        items, decoder = self._items[start:stop], self._decoder
        if not self._complete and (errors := [x for x in items if isinstance(x, DataError)]):
            raise errors[0]
        return items if decoder is None else [decoder(item) for item in items]


class Format(ABC):
    """A file format."""

    name: str
    suffixes: tuple[str, ...]

    @abstractmethod
    def scan(self, file: DataFile, advance: Callable[[int], None]) -> Scan:
        """Divide a file into blocks.

        Args:
            file: the file.
            advance: called with the number of bytes that were scanned.
        """

    @abstractmethod
    def read(self, file: DataFile, block: Block) -> list[Any]:
        """Return the records of a block, not decoded; raise an error if it cannot be read."""

    def load(self, blocks: Sequence[Callable[[], list[Any]]], counts: Sequence[int]) -> Records:
        """Return the records of several blocks; those of a block that fails are errors.

        Args:
            blocks: functions that read a block each.
            counts: the number of records in each.
        """
        items: list[Any] = []
        for read, count in zip(blocks, counts, strict=True):
            items += _or_errors(read, count)
        return ListedRecords.of(items, self.decode)

    @property
    def decode(self) -> Callable[[Any], Any] | None:
        """The function that decodes a record, None if they are decoded when read."""
        return None

    def where(self, file: DataFile, block: Block, index: int) -> str:
        """Return where a record of a block is, for messages."""
        return f"record {index} after byte {block.start}"


def _or_errors(read: Callable[[], list[Any]], count: int) -> list[Any]:
    try:
        found = read()
    except Exception as error:  # whatever a library raises for a damaged file
        if is_io_error(error):
            raise
        return [DataError(f"{type(error).__name__}: {error}")] * count
    if len(found) != count:
        return [DataError(f"{len(found)} records where the index has {count}")] * count
    return found


class TextFormat(Format):
    """Lines of UTF-8; each is a record, without its end."""

    name = "text"
    suffixes: tuple[str, ...] = (".txt", ".text")

    def scan(self, file: DataFile, advance: Callable[[int], None]) -> Scan:
        """Divide the file after 1024 lines, or the last complete line of a megabyte."""
        scan, start = Scan(), 0
        while start < file.size:
            data = _complete_lines(file, start)
            if not data:
                break
            for piece in _pieces(data):
                if count := self._count(piece):
                    scan.blocks.append(Block(start, len(piece), count))
                start += len(piece)
            advance(len(data))
        return scan

    def read(self, file: DataFile, block: Block) -> list[Any]:
        """Return the lines of a block as texts; one that is not UTF-8 as an error."""
        data = open_range(file, block.start, block.length)
        if b"\r" in data:
            data = data.replace(b"\r\n", b"\n").removesuffix(b"\r")
        try:
            lines: list[Any] = _lines(data.decode())
        except UnicodeDecodeError:
            lines = [_text_or_error(line) for line in _lines(data)]
        if block.start == 0 and lines and isinstance(lines[0], str):
            lines[0] = lines[0].removeprefix("\ufeff")
        return self._records(lines, block)

    def where(self, file: DataFile, block: Block, index: int) -> str:
        """Return the offset of a line."""
        offset = block.start
        for line in open_range(file, block.start, block.length).split(b"\n"):
            if self._is_record(line):
                if index == 0:
                    break
                index -= 1
            offset += len(line) + 1
        return f"byte {offset}"

    def _count(self, data: bytes) -> int:
        return data.count(b"\n") + (not data.endswith(b"\n"))

    def _is_record(self, line: bytes) -> bool:
        return True

    def _records(self, lines: list[Any], block: Block) -> list[Any]:
        return lines


class JsonLinesFormat(TextFormat):
    """Lines of JSON; blank lines are ignored."""

    name = "jsonl"
    suffixes = (".jsonl", ".ndjson")

    @property
    def decode(self) -> Callable[[Any], Any]:
        """The JSON decoder."""
        return _decode_json

    def _count(self, data: bytes) -> int:
        return sum(map(self._is_record, data.split(b"\n")))

    def _is_record(self, line: bytes) -> bool:
        return bool(line.strip())

    def _records(self, lines: list[Any], block: Block) -> list[Any]:
        if len(lines) == block.records:
            return lines
        return [line for line in lines if not isinstance(line, str) or line.strip()]


_DECODER: Any = JSONDecoder()
_scan_json = _DECODER.scan_once


def _decode_json(text: str) -> Any:
    """Decode a line; one without spaces around its value takes the short way."""
    try:
        value, end = _scan_json(text, 0)
    except StopIteration:
        return _DECODER.decode(text)
    return value if end == len(text) else _DECODER.decode(text)


def _complete_lines(file: DataFile, start: int) -> bytes:
    """Read at least one line, and as many as fit into a block."""
    length = BLOCK_BYTES
    while True:
        data = open_range(file, start, length)
        if start + len(data) >= file.size:
            return data
        end = data.rfind(b"\n") + 1
        if end:
            return data[:end]
        length *= 2


def _pieces(data: bytes) -> list[bytes]:
    """Divide lines into pieces of at most `BLOCK_LINES`."""
    if data.count(b"\n") <= BLOCK_LINES:
        return [data]
    lines = data.split(b"\n")
    groups = [lines[at : at + BLOCK_LINES] for at in range(0, len(lines), BLOCK_LINES)]
    pieces = [b"\n".join(group) + b"\n" for group in groups]
    pieces[-1] = pieces[-1][:-1]  # after the last line end, or of a line without one
    return [piece for piece in pieces if piece]


def _lines(data: Any) -> list[Any]:
    end = "\n" if isinstance(data, str) else b"\n"
    lines: list[Any] = data.split(end)
    if not lines[-1]:
        lines.pop()
    return lines


def _text_or_error(line: bytes) -> str | DataError:
    try:
        return line.decode()
    except UnicodeDecodeError as error:
        return DataError(f"not UTF-8: {error.reason} at byte {error.start} of the line")


class ParquetFormat(Format):
    """Rows of Parquet files, as dicts; a block is a row group.

    Args:
        columns: the columns to read, None for all.
    """

    name = "parquet"
    suffixes = (".parquet", ".pq")

    def __init__(self, columns: Sequence[str] | None = None) -> None:
        self._columns = list(columns) if columns is not None else None
        self._files: dict[str, Any] = {}

    def scan(self, file: DataFile, advance: Callable[[int], None]) -> Scan:
        """Return the row groups, which the end of the file lists."""
        try:
            metadata = self._open(file).metadata
        except ImportError:
            raise
        except Exception as error:
            if is_io_error(error):
                raise
            return Scan(damage=[(0, f"{type(error).__name__}: {error}")])
        finally:
            advance(file.size)
        groups = (metadata.row_group(number) for number in range(metadata.num_row_groups))
        found = [Block(n, one.total_byte_size, one.num_rows) for n, one in enumerate(groups)]
        return Scan([block for block in found if block.records])

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
        return found.read_row_group(block.start, columns=self._columns, use_threads=False)

    def load(self, blocks: Sequence[Callable[[], Any]], counts: Sequence[int]) -> Records:
        """Return the rows of several row groups."""
        from pyarrow import concat_tables

        tables = [_or_errors(read, count) for read, count in zip(blocks, counts, strict=True)]
        schemas: list[Any] = [getattr(table, "schema", None) for table in tables]
        if schemas[0] is not None and all(schemas[0].equals(schema) for schema in schemas):
            return _Rows(concat_tables(tables))
        rows = (one if isinstance(one, list) else one.to_pylist() for one in tables)
        return ListedRecords.of([row for some in rows for row in some])

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
            while len(self._files) >= _OPEN_FILES:
                self._files.pop(next(iter(self._files))).close()
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


class _Rows(Records):
    """Rows of an Arrow table."""

    def __init__(self, table: Any) -> None:
        self._table = table

    def pick(self, indices: Ints) -> "_Rows":
        return _Rows(self._table.take(indices))

    def decode(self, start: int, stop: int) -> list[Any]:
        rows: list[Any] = self._table.slice(start, max(0, stop - start)).to_pylist()
        return rows
