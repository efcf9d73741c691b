"""The files of a source, on disk or in an object store: find them, and read ranges of their bytes.

Nothing else in this package opens a data file, except for Parquet on disk, whose library does.
"""

import glob
import io
import os
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stoker.core.errors import did_you_mean_path
from stoker.data.streams.names import data_files, expand_braces
from stoker.data.streams.remote import ChangedError, find_objects, object_versions, read_object
from stoker.storage import local_path, store_url
from stoker.storage.descriptors import closing_descriptor

_LARGEST_READ = 1 << 30
"""Bytes per call; Linux reads slightly less than 2 GiB at once."""


@dataclass(frozen=True, slots=True)
class DataFile:
    """A file.

    Args:
        path: its absolute path, or its URL.
        name: its name relative to the folder of the source.
        size: its size in bytes.
        version: its modification time in nanoseconds, or the entity tag of an object.
    """

    path: str
    name: str
    size: int
    version: str

    @property
    def is_remote(self) -> bool:
        """Whether it is in an object store."""
        return is_url(self.path)


def is_url(path: str) -> bool:
    """Return whether an absolute path is the URL of an object store."""
    return not os.path.isabs(path)


def is_io_error(error: BaseException) -> bool:
    """Return whether a file could not be read, or was replaced, rather than being corrupt."""
    failed = isinstance(error, OSError) and error.errno is not None  # Arrow raises others
    return failed or isinstance(error, ChangedError)


def open_range(file: DataFile, start: int, length: int) -> bytes:
    """Return ``length`` bytes of a file from ``start``; fewer if the file ends before."""
    if file.is_remote:
        length = max(0, min(length, file.size - start))
        return read_object(file.path, start, length, file.version) if length else b""
    pieces = []
    with closing_descriptor(os.open(file.path, os.O_RDONLY | os.O_CLOEXEC)) as descriptor:
        while length > 0:
            piece = os.pread(descriptor, min(length, _LARGEST_READ), start)
            if not piece:
                break
            pieces.append(piece)
            start, length = start + len(piece), length - len(piece)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


class HeaderReader:
    """Reads small ranges of a file, each after the one before, with few reads.

    It reads more at once while ranges are close to each other, and less when they are not. From a
    store, a megabyte takes hardly longer than a few bytes.
    """

    _MOST = 1 << 20

    def __init__(self, file: DataFile) -> None:
        self._file = file
        self._least = self._MOST if file.is_remote else 1 << 12
        self._start, self._data, self._size = 0, b"", self._least

    def read(self, start: int, length: int) -> bytes:
        """Return a range of the file."""
        at = start - self._start
        if at < 0 or at + length > len(self._data):
            near = 0 <= at <= len(self._data)
            self._size = min(self._MOST, 2 * self._size) if near else self._least
            self._start, at = start, 0
            self._data = open_range(self._file, start, max(length, self._size))
        return self._data[at : at + length]


class RangeFile(io.RawIOBase):
    """A file for libraries that read files: ranges that were read before, and the rest on demand.

    Args:
        file: the file.
        ranges: offset and contents of what was read before.
    """

    def __init__(self, file: DataFile, ranges: Iterable[tuple[int, bytes]] = ()) -> None:
        super().__init__()
        self._file, self._ranges, self._at = file, list(ranges), 0

    def readable(self) -> bool:
        """Return that it can be read."""
        return True

    def seekable(self) -> bool:
        """Return that any part of it can be read."""
        return True

    def tell(self) -> int:
        """Return the offset of the next read."""
        return self._at

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Set the offset of the next read."""
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._file.size}
        self._at = base[whence] + offset
        return self._at

    def readinto(self, buffer: Any) -> int:
        """Read from the offset."""
        found = self._get(self._at, len(buffer))
        buffer[: len(found)] = found
        self._at += len(found)
        return len(found)

    def _get(self, start: int, length: int) -> bytes:
        for first, data in self._ranges:
            if first <= start and start + length <= first + len(data):
                return data[start - first : start - first + length]
        return open_range(self._file, start, length)


def check_version(file: DataFile) -> None:
    """Raise a `ChangedError` if a file on disk has changed since it was indexed.

    Objects of a store are checked when they are read.
    """
    if file.is_remote:
        return
    status = os.stat(file.path)
    if (status.st_size, str(status.st_mtime_ns)) != (file.size, file.version):
        raise ChangedError(
            f"'{file.path}' has changed since the stream was made: its records are no longer those "
            "of the index; make the stream again"
        )


def find_files(source: Any, suffixes: Iterable[str]) -> list[str]:
    """Return the paths or URLs that a source names, sorted within each folder and pattern.

    Args:
        source: a file, a folder, a pattern such as ``"data/*.jsonl"``, a URL of one of these in an
            object store, or several of them.
        suffixes: the suffixes of the files to take from a folder.
    """
    if not isinstance(source, str | os.PathLike | list | tuple):
        raise TypeError(
            f"the source is a {type(source).__name__}, expected a path, a pattern, a list of them, "
            "or a dataset of Hugging Face"
        )
    parts: list[Any] = [source] if isinstance(source, str | os.PathLike) else list(source)
    found = [path for part in parts for path in _find(part, suffixes)]
    if not found:
        raise ValueError(f"the source {source!r} names no files, expected at least one")
    repeated = [path for path, times in Counter(found).items() if times > 1]
    if repeated:
        raise ValueError(f"the source names '{repeated[0]}' more than once: each file is read once")
    return found


def _find(source: str | Path, suffixes: Iterable[str]) -> list[str]:
    url = store_url(source, "source")
    if url is not None:
        return [one for name in expand_braces(url) for one in find_objects(name, suffixes)]
    path = local_path(source, "source")
    if path.is_dir():
        found = data_files(_files_below(path), suffixes, str(path))
    elif os.path.lexists(path):
        found = [str(path)]
    elif len(names := expand_braces(str(path))) > 1:
        return [one for name in names for one in _find(name, suffixes)]
    elif glob.has_magic(str(path)):
        found = _matching(path)
    else:
        raise FileNotFoundError(f"there is no '{path}'{did_you_mean_path(path)}")
    for one in found:
        _check_regular(one)
    return found


def _files_below(folder: Path) -> Iterator[str]:
    """Yield all that is below a folder and not hidden; links to other folders are followed."""
    seen: set[str] = set()
    for parent, folders, names in os.walk(folder, followlinks=True):
        real = os.path.realpath(parent)
        if real in seen:
            folders.clear()
            continue
        seen.add(real)
        folders[:] = sorted(one for one in folders if not one.startswith("."))
        folders.sort(key=lambda one: os.path.islink(os.path.join(parent, one)))
        yield from (os.path.join(parent, one) for one in names if not one.startswith("."))


def _matching(pattern: Path) -> list[str]:
    """Return what matches a pattern; the name of a folder that exists is taken literally."""
    folder, name = os.path.split(pattern)
    text = os.path.join(glob.escape(folder), name) if os.path.isdir(folder) else str(pattern)
    found = sorted(one for one in glob.glob(text, recursive=True) if not os.path.isdir(one))
    if not found:
        raise ValueError(f"no file matches '{pattern}'")
    return found


def _check_regular(path: str) -> None:
    if not os.path.exists(path):
        raise FileNotFoundError(f"'{path}' is a link to '{os.readlink(path)}', which is not there")
    if not os.path.isfile(path):
        raise ValueError(f"'{path}' is not a regular file")


def status_of(paths: list[str]) -> tuple[str, list[DataFile]]:
    """Return the folder that holds all files, and the files with names relative to it."""
    full = [path if "://" in path else os.path.abspath(path) for path in paths]
    folder = _common_folder(full)
    if is_url(folder):
        versions = object_versions(full, folder)
    else:
        found = [os.stat(path) for path in full]
        _check_different(full, found)
        versions = [(status.st_size, str(status.st_mtime_ns)) for status in found]
    files = []
    for path, (size, version) in zip(full, versions, strict=True):
        name = Path(path[len(folder) :]).as_posix().lstrip("/")
        files.append(DataFile(path, name, size, version))
    return folder, files


def _check_different(paths: list[str], found: list[os.stat_result]) -> None:
    """Raise a `ValueError` if two paths lead to the same file, whose records would come twice."""
    known: dict[tuple[int, int], str] = {}
    for path, status in zip(paths, found, strict=True):
        other = known.setdefault((status.st_dev, status.st_ino), path)
        if other != path and status.st_ino:
            raise ValueError(
                f"the source names '{other}' and '{path}', which are the same file: each file is "
                "read once"
            )


def _common_folder(paths: list[str]) -> str:
    """Return the innermost folder that holds all files."""
    buckets = {"/".join(path.split("/")[:3]) if is_url(path) else "" for path in paths}
    if len(buckets) > 1:
        places = ", ".join(sorted(one or "disk" for one in buckets))
        raise ValueError(
            f"the source is in several places ({places}): make a stream of each and combine them "
            "with stoker.data.mix"
        )
    if bucket := buckets.pop():
        inside = [os.path.dirname(path[len(bucket) :]) for path in paths]
        return (bucket + os.path.commonpath(inside)).rstrip("/")
    return os.path.commonpath([os.path.dirname(path) for path in paths])
