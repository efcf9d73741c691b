"""The index of a source: the blocks of all its files, built once, cached and verified.

The cache is one file per folder and format, ``.stoker-index/<format>.index`` next to the data, or
in the cache folder of Stoker if that folder cannot be written or the data is in an object store. It
holds the size and the version of each file; a file that has another one is indexed again. A cache
whose checksum is wrong is ignored.
"""

import errno
import json
import os
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from threading import Event, Lock
from typing import Any

import numpy as np
import xxhash

from stoker.core.digest import digest
from stoker.core.errors import DataError, WriteError
from stoker.core.log import get_logger
from stoker.data.streams.files import DataFile, find_files, is_url, status_of
from stoker.data.streams.formats import Block, Format, JsonLinesFormat, TextFormat
from stoker.data.streams.names import check_not_compressed
from stoker.data.streams.order import Ints
from stoker.data.streams.parquet import ParquetFormat
from stoker.data.streams.remote import at_once
from stoker.data.streams.tar import TarFormat
from stoker.storage import write_atomic
from stoker.storage.locations import cache_folder, copy_folder

FOLDER = ".stoker-index"
FORMATS: dict[str, type[Format]] = {
    one.name: one for one in (JsonLinesFormat, TextFormat, ParquetFormat, TarFormat)
}
_VERSION = 3
_SUFFIXES = {suffix: name for name, one in FORMATS.items() for suffix in one.suffixes}

_log = get_logger()


@dataclass(frozen=True, slots=True)
class FileIndex:
    """The blocks of one file.

    Args:
        file: the file and its version.
        blocks: a row of start, length and number of records for each block.
        damage: the offsets from which the file cannot be read, with the reasons.
    """

    file: DataFile
    blocks: Ints
    damage: list[tuple[int, str]]

    @property
    def records(self) -> int:
        """The number of records."""
        return int(self.blocks[:, 2].sum())


class Index:
    """The blocks of all files of a source.

    Args:
        format: the name of the format.
        entries: the files in order.
    """

    def __init__(self, format: str, entries: Sequence[FileIndex]) -> None:
        self.format, self.entries = format, list(entries)
        empty = np.zeros((0, 3), np.int64)
        table = np.concatenate([empty, *(one.blocks for one in entries)])
        self._starts = table[:, 0]
        self.sizes, self.counts = table[:, 1], table[:, 2]
        lengths = [len(one.blocks) for one in entries]
        self._files = np.repeat(np.arange(len(entries)), lengths)

    @property
    def records(self) -> int:
        """The number of records in all files."""
        return int(self.counts.sum())

    @property
    def bytes(self) -> int:
        """The size of all files."""
        return sum(one.file.size for one in self.entries)

    @property
    def versions(self) -> dict[str, str]:
        """The version of each file, by name."""
        files = (one.file for one in self.entries)
        return {file.name: f"{file.size} bytes, {file.version}" for file in files}

    @property
    def fingerprint(self) -> str:
        """A digest of the names, versions and blocks of all files."""
        checksum = xxhash.xxh3_128(json.dumps([self.format, self.versions]).encode())
        for column in (self._starts, self.sizes, self.counts):
            checksum.update(column.tobytes())
        return checksum.hexdigest()

    def block(self, number: int) -> tuple[DataFile, Block]:
        """Return a block and the file it is in."""
        found = Block(int(self._starts[number]), int(self.sizes[number]), int(self.counts[number]))
        return self.entries[self._files[number]].file, found


def format_of(paths: Iterable[str], format: str | None, columns: Any = None) -> Format:
    """Return the format of some files, by their suffixes unless it is given."""
    if format is not None and format not in FORMATS:
        raise ValueError(f"format must be one of {', '.join(FORMATS)}, got {format!r}")
    names = {format} if format else {_format_by_suffix(path) for path in paths}
    if len(names) > 1:
        raise ValueError(
            f"the source has files of several formats ({', '.join(sorted(map(str, names)))}): "
            "make a stream of each and combine them with stoker.data.mix"
        )
    found = FORMATS[str(names.pop())]
    if found is ParquetFormat:
        return ParquetFormat(columns)
    if columns is not None:
        raise ValueError(f"columns are for Parquet files, but the source is {found.name}")
    return found()


def files_of(source: Any, format: str | None) -> list[str]:
    """Return the paths of the files of a source."""
    suffixes = FORMATS[format].suffixes if format in FORMATS else tuple(_SUFFIXES)
    return find_files(source, suffixes)


def _format_by_suffix(path: str) -> str:
    check_not_compressed(path)
    suffix = os.path.splitext(path)[1].lower()
    if suffix not in _SUFFIXES:
        raise ValueError(
            f"the format of '{path}' is unknown: pass format= ({', '.join(FORMATS)}), or use one "
            f"of the suffixes {', '.join(_SUFFIXES)}"
        )
    return _SUFFIXES[suffix]


def build_index(
    paths: list[str],
    format: Format,
    cache: Path | None = None,
    *,
    progress: Callable[[int, int], None] | None = None,
) -> Index:
    """Return the index of some files: from the cache as far as it is valid, otherwise built.

    Args:
        paths: the files.
        format: their format.
        cache: the folder of the cache, None for the default one.
        progress: called with the number of bytes scanned so far, and in total.
    """
    folder, files = status_of(paths)
    places = cache_places(folder, format.name, cache)
    known = {one.file: one for one in read_cache(places, folder)}
    missing = [file for file in files if file not in known]
    if missing:
        _log.debug(f"indexing {len(missing)} files in {folder}")
        known |= _scan_all(missing, format, progress)
        current = {file.name for file in files}
        others = [one for one in known.values() if one.file.name not in current]
        _write_cache(places, format.name, [*others, *(known[file] for file in files)])
    index = Index(format.name, [known[file] for file in files])
    if missing:
        _check_unchanged(index, paths)
    return index


def _scan_all(
    files: list[DataFile], format: Format, progress: Callable[[int, int], None] | None
) -> dict[DataFile, FileIndex]:
    """Return the blocks of files; several files of a store are scanned at once."""
    total, done, lock, failed = sum(file.size for file in files), 0, Lock(), Event()

    def advance(count: int) -> None:
        nonlocal done
        if failed.is_set():
            raise InterruptedError(errno.EINTR, "another file could not be indexed")
        with lock:
            done += count
            if progress is not None:
                progress(done, total)

    def scan(file: DataFile) -> FileIndex:
        found = format.scan(file, advance)
        return FileIndex(file, np.array(found.blocks, np.int64).reshape(-1, 3), found.damage)

    scans: list[Callable[[], FileIndex]] = [partial(scan, file) for file in files]
    results = at_once(scans) if files[0].is_remote else scans
    try:
        return {file: result() for file, result in zip(files, results, strict=True)}
    except BaseException:
        failed.set()  # ends the other threads
        raise


def _check_unchanged(index: Index, paths: list[str]) -> None:
    """Raise a `DataError` if a file was written while it was indexed."""
    _, files = status_of(paths)
    for entry, file in zip(index.entries, files, strict=True):
        if entry.file != file:
            raise DataError(f"'{file.path}' changed while it was indexed: wait until it is written")


# The cache


def cache_places(folder: str, format: str, cache: Path | None) -> list[Path]:
    """Return the paths of the cache file, in the order in which they are tried."""
    if is_url(folder):  # buckets of the same name on two servers are two
        name = f"{digest(str(copy_folder(folder)))}-{format}.index"
        return [(cache or cache_folder() / "indexes") / name]
    name = f"{digest(folder)}-{format}.index"
    if cache is not None:
        return [cache / name]
    return [Path(folder) / FOLDER / f"{format}.index", cache_folder() / "indexes" / name]


def read_cache(places: list[Path], folder: str) -> list[FileIndex]:
    """Return the entries of the first cache file that is there and valid."""
    for place in places:
        with suppress(OSError):
            header, _, payload = place.read_bytes().partition(b"\n")
            try:
                return _entries(json.loads(header), payload, folder)
            except (ValueError, KeyError, TypeError) as error:
                _log.warning(f"the index '{place}' is damaged and built again: {error}")
    return []


def _entries(header: dict[str, Any], payload: bytes, folder: str) -> list[FileIndex]:
    if header["version"] != _VERSION:
        return []
    if header["checksum"] != _checksum(header["files"], payload):
        raise ValueError("its checksum is wrong")
    table = np.frombuffer(payload, np.int64).reshape(-1, 3)
    entries, start = [], 0
    for name, size, version, blocks, damage in header["files"]:
        file = DataFile(os.path.join(folder, *name.split("/")), name, size, version)
        damaged = [(offset, reason) for offset, reason in damage]
        entries.append(FileIndex(file, table[start : start + blocks], damaged))
        start += blocks
    return entries


def _write_cache(places: list[Path], format: str, entries: list[FileIndex]) -> None:
    rows = [
        [one.file.name, one.file.size, one.file.version, len(one.blocks), one.damage]
        for one in entries
    ]
    payload = np.concatenate([one.blocks for one in entries]).tobytes()
    files = json.loads(json.dumps(rows))
    checksum = _checksum(files, payload)
    header = {"version": _VERSION, "format": format, "checksum": checksum, "files": files}
    for place in places:
        try:
            write_atomic(place, json.dumps(header).encode() + b"\n" + payload, durable=False)
            return
        except (WriteError, OSError):
            continue
    _log.warning(f"the index cannot be cached in {' or '.join(map(str, places))}")


def _checksum(files: Any, payload: bytes) -> str:
    return xxhash.xxh3_128_hexdigest(json.dumps(files).encode() + payload)
