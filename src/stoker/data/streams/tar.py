"""WebDataset shards: tar files in which consecutive members of the same name are a record."""

import io
import re
import tarfile
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from stoker.data.streams.files import (
    DataFile,
    HeaderReader,
    RangeFile,
    is_io_error,
    open_range,
)
from stoker.data.streams.formats import BLOCK_BYTES, Block, Format, Scan, check_beginning

_BLOCK = tarfile.BLOCKSIZE
_REGULAR = b"0\0"
_ZERO, _NINE = 0x30, 0x39
_METADATA = re.compile(r"__[^/]*__($|/)")
_AFTER_END = 1 << 16
"""Bytes after the end mark that are read; archives are filled with zeros to a multiple of 10 kB."""


class _Member(NamedTuple):
    """A regular file in an archive: where its header begins, its name, and where its data is."""

    header: int
    name: str
    data: int
    size: int

    @property
    def end(self) -> int:
        return self.data + -(-self.size // _BLOCK) * _BLOCK


class _UnusualHeaderError(Exception):
    """A header that only `tarfile` understands: long names, sparse files, links."""


class TarFormat(Format):
    """Records of a WebDataset shard: a dict of bytes by suffix, and the name as ``__key__``."""

    name = "webdataset"
    suffixes = (".tar",)

    def scan(self, file: DataFile, advance: Callable[[int], None]) -> Scan:
        """Divide the archive between records, after each megabyte."""
        check_beginning(file, open_range(file, 0, _BLOCK))
        scan = Scan()
        start = end = count = done = 0
        try:
            for members in _grouped(_members_of_file(file, scan)):
                if count and members[-1].end - start > BLOCK_BYTES:
                    scan.blocks.append(Block(start, end - start, count))
                    count = 0
                start = start if count else members[0].header
                end, count = members[-1].end, count + 1
                advance(end - done)
                done = end
            if open_range(file, max(0, file.size - _BLOCK), _BLOCK).strip(b"\0"):
                raise ValueError("the archive is cut off: it has no end mark")
        except (tarfile.TarError, ValueError) as error:
            if is_io_error(error):
                raise
            scan.damage.append((end, str(error) or type(error).__name__))
        if count:
            scan.blocks.append(Block(start, end - start, count))
        advance(file.size - done)
        return scan

    def read(self, file: DataFile, block: Block) -> list[Any]:
        """Return the records of a block."""
        data = open_range(file, block.start, block.length)
        try:
            return [_record(data, members) for members in _grouped(_members(data))]
        except _UnusualHeaderError:
            members = _members_by_tarfile(io.BytesIO(data))
            return [_record(data, some) for some in _grouped(members)]

    def where(self, file: DataFile, block: Block, index: int) -> str:
        """Return the offset of the first header of a record."""
        data = io.BytesIO(open_range(file, block.start, block.length))
        members = list(_grouped(_members_by_tarfile(data)))[index]
        return f"byte {block.start + members[0].header}"


def _record(data: bytes, members: list[_Member]) -> dict[str, Any]:
    record: dict[str, Any] = {"__key__": _split(members[0].name)[0]}
    for member in members:
        record[_split(member.name)[1]] = data[member.data : member.data + member.size]
    return record


def _split(name: str) -> tuple[str, str]:
    """Return the key and the suffix: a name is divided at the first dot of its last part."""
    slash = name.rfind("/") + 1
    dot = name.find(".", slash)
    return (name, "") if dot < 0 else (name[:dot], name[dot + 1 :].lower())


def _grouped(members: Iterator[_Member]) -> Iterator[list[_Member]]:
    """Yield the members of each record; a suffix that comes again begins another record.

    As in WebDataset, names without a key or a suffix (``README``, ``._0.jpg``) and those of
    metadata (``__info__``) belong to no record.
    """
    group: list[_Member] = []
    key, suffixes = "", set[str]()
    for member in members:
        own, suffix = _split(member.name)
        if not suffix or own.endswith("/") or not own or _METADATA.match(member.name):
            continue
        if group and (own != key or suffix in suffixes):
            yield group
            group, suffixes = [], set()
        group.append(member)
        suffixes.add(suffix)
        key = own
    if group:
        yield group


def _members(data: bytes) -> Iterator[_Member]:
    """Yield the regular files of part of an archive that has only simple headers."""
    at, end = 0, len(data)
    while at + _BLOCK <= end:
        member = _simple(data[at : at + _BLOCK], at)
        if member.end > -(-end // _BLOCK) * _BLOCK:
            raise ValueError(f"the file {member.name!r} is cut off")
        yield member
        at = member.end


def _simple(header: bytes, at: int) -> _Member:
    """Read a header without links, long names and sizes beyond eight gigabytes."""
    size, name = header[124:135], header[:100]
    if header[156] not in _REGULAR or not _ZERO <= size[0] <= _NINE or header[345]:
        raise _UnusualHeaderError
    text = name.rstrip(b"\0").decode(errors="surrogateescape")
    return _Member(at, text, at + _BLOCK, int(size.rstrip(b" \0"), 8))


def _members_of_file(file: DataFile, scan: Scan) -> Iterator[_Member]:
    """Yield the regular files of an archive, with checked headers; note what follows its end."""
    at, headers = 0, HeaderReader(file)
    while at + _BLOCK <= file.size:
        header = headers.read(at, _BLOCK)
        if not header.strip(b"\0"):
            if open_range(file, at, _AFTER_END).strip(b"\0"):
                scan.damage.append((at, "more data follows its end mark, as in joined archives"))
            return
        tarfile.TarInfo.frombuf(header, "utf-8", "surrogateescape")  # raises if it is damaged
        try:
            member = _simple(header, at)
        except _UnusualHeaderError:
            yield from _rest_by_tarfile(file, at)
            return
        if member.data + member.size > file.size:
            raise ValueError(f"the file {member.name!r} at byte {at} is cut off")
        yield member
        at = member.end


def _rest_by_tarfile(file: DataFile, start: int) -> Iterator[_Member]:
    with io.BufferedReader(RangeFile(file), BLOCK_BYTES if file.is_remote else _BLOCK) as archive:
        archive.seek(start)
        for member in _members_by_tarfile(archive):
            if member.data + member.size > file.size:
                raise ValueError(f"the file {member.name!r} at byte {member.header} is cut off")
            yield member


def _members_by_tarfile(file: Any) -> Iterator[_Member]:
    with tarfile.open(fileobj=file, mode="r:") as archive:
        for info in archive:
            if info.issparse() or info.islnk() or info.issym():
                kind = "sparse file" if info.issparse() else "link"
                raise ValueError(f"{info.name!r} is a {kind}, expected regular files")
            if info.isreg():
                yield _Member(info.offset, info.name, info.offset_data, info.size)
