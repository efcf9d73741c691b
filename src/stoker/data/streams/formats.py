"""File formats: what all have in common, and JSON lines and text.

A format divides a file into blocks of records, once, and reads the records of a block. A block is
what is read at a time: about a megabyte of lines, or a row group.
"""

import codecs
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from io import BytesIO
from json import JSONDecoder
from typing import Any, NamedTuple

from stoker.core.errors import DataError
from stoker.data.streams.files import DataFile, is_io_error, open_range
from stoker.data.streams.order import Ints

BLOCK_BYTES = 1 << 20
"""The number of bytes after which a block of lines or tar members ends."""


BLOCK_LINES = 1024
"""The number of lines after which a block ends, so that a window of short lines has several."""


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
        decoder: the function that decodes some of them, None if they are decoded already.
        picks: the indices of the records to return, None for all.
    """

    def __init__(
        self,
        items: list[Any],
        decoder: Callable[[list[Any]], list[Any]] | None = None,
        picks: Ints | None = None,
    ) -> None:
        self._items, self._decoder, self._picks = items, decoder, picks

    def pick(self, indices: Ints) -> "ListedRecords":
        """Return some of the records, which are first touched when they are decoded."""
        return ListedRecords(self._items, self._decoder, indices)

    def decode(self, start: int, stop: int) -> list[Any]:
        """Return decoded records."""
        items = self._items
        if self._picks is None:
            items = items[start:stop]
        else:
            items = [items[index] for index in self._picks[start:stop].tolist()]
        if DataError in set(map(type, items)):
            raise next(item for item in items if isinstance(item, DataError))
        return items if self._decoder is None else self._decoder(items)


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
            items += or_errors(read, count)
        return ListedRecords(items, self.decode)

    def decode(self, items: list[Any]) -> list[Any]:
        """Return decoded records; raise an error if one is corrupt."""
        return items

    def where(self, file: DataFile, block: Block, index: int) -> str:
        """Return where a record of a block is, for messages."""
        return f"record {index} after byte {block.start}"


def or_errors(read: Callable[[], Any], count: int) -> Any:
    """Return the records that a function reads, or as many errors if it fails."""
    try:
        found = read()
    except Exception as error:  # whatever a library raises for a damaged file
        if is_io_error(error):
            raise
        kind = "" if isinstance(error, DataError) else f"{type(error).__name__}: "
        return [DataError(f"{kind}{error}")] * count
    if len(found) != count:
        return [DataError(f"{len(found)} records where the index has {count}")] * count
    return found


_COMPRESSED = {
    b"\x1f\x8b": "gzip",
    b"\x28\xb5\x2f\xfd": "Zstandard",
    b"\xfd7zXZ\0": "xz",
    b"\x04\x22\x4d\x18": "LZ4",
    b"PK\x03\x04": "zip",
}


def check_beginning(file: DataFile, data: bytes) -> None:
    """Raise a `ValueError` if a file is compressed, or text in another encoding."""
    kind = next((name for mark, name in _COMPRESSED.items() if data.startswith(mark)), None)
    if data.startswith(b"BZh") and data[4:10] == b"1AY&SY":
        kind = "bzip2"
    if kind is not None:
        raise ValueError(
            f"'{file.path}' is compressed ({kind}), so records in it cannot be found without "
            "reading it from the start: decompress it, or convert it to Parquet"
        )
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE, codecs.BOM_UTF32_BE)):
        wide = data.startswith((codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE))
        raise ValueError(
            f"'{file.path}' is UTF-{32 if wide else 16}, expected UTF-8: convert it with iconv"
        )


def _check_narrow(file: DataFile, data: bytes) -> None:
    """Raise a `ValueError` if every other byte is zero: UTF-16 without a mark is valid UTF-8."""
    some = data[:1024]
    zeros = sorted(some[first::2].count(0) for first in (0, 1))
    if 10 * zeros[1] > 4 * len(some) and zeros[0] <= len(some) // 100:
        raise ValueError(f"'{file.path}' seems to be UTF-16, expected UTF-8: convert it with iconv")


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
            if start == 0:
                check_beginning(file, data)
                _check_narrow(file, data)
            for piece in _pieces(data):
                lines = piece.removeprefix(codecs.BOM_UTF8) if start == 0 else piece
                if count := self._count(lines):
                    scan.blocks.append(Block(start, len(piece), count))
                start += len(piece)
            advance(len(data))
        return scan

    def read(self, file: DataFile, block: Block) -> list[Any]:
        """Return the lines of a block as bytes, each with one line feed at its end."""
        data = open_range(file, block.start, block.length)
        if block.start == 0:
            data = data.removeprefix(codecs.BOM_UTF8)
        if b"\r" in data:
            data = data.replace(b"\r\n", b"\n")
        lines = BytesIO(data).readlines()  # splits long lines much faster than bytes.split
        if lines and not lines[-1].endswith(b"\n"):
            lines[-1] = lines[-1].removesuffix(b"\r") + b"\n"
        if len(lines) != block.records:
            lines = [line for line in lines if self._is_record(line)]
        return lines

    def decode(self, items: list[Any]) -> list[Any]:
        """Return lines as texts without their ends."""
        try:
            return [line[:-1].decode() for line in items]
        except UnicodeDecodeError as error:
            raise _not_text(error) from error

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
        return data.count(b"\n") + (data != b"" and not data.endswith(b"\n"))

    def _is_record(self, line: bytes) -> bool:
        return True


class JsonLinesFormat(TextFormat):
    """Lines of JSON; blank lines are ignored."""

    name = "jsonl"
    suffixes = (".jsonl", ".ndjson")

    def decode(self, items: list[Any]) -> list[Any]:
        """Return the values of lines."""
        try:
            return [_decode_json(line.decode()) for line in items]
        except UnicodeDecodeError as error:
            raise _not_text(error) from error

    def _count(self, data: bytes) -> int:
        return sum(map(self._is_record, data.split(b"\n")))

    def _is_record(self, line: bytes) -> bool:
        return bool(line.removeprefix(codecs.BOM_UTF8).strip())


_DECODER: Any = JSONDecoder()
_scan_json = _DECODER.scan_once


def _decode_json(line: str) -> Any:
    """Decode a line with its end; one without spaces around its value takes the short way."""
    try:
        value, end = _scan_json(line, 0)
    except (StopIteration, ValueError):
        return _DECODER.decode(line[:-1])
    return value if end == len(line) - 1 else _DECODER.decode(line[:-1])


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


def _not_text(error: UnicodeDecodeError) -> DataError:
    return DataError(f"not UTF-8: {error.reason} at byte {error.start} of the line")
