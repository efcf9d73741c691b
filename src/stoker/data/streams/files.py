"""The files of a source: find them, and read ranges of their bytes.

Nothing else in this package opens a data file, except for Parquet, whose library does.
"""

import glob
import os
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stoker.core.errors import DataError, did_you_mean_path
from stoker.storage import local_path
from stoker.storage.descriptors import closing_descriptor

_LARGEST_READ = 1 << 30
"""Bytes per call; Linux reads slightly less than 2 GiB at once."""


@dataclass(frozen=True, slots=True)
class DataFile:
    """A file: its path, its name relative to the folder of the source, and its version."""

    path: str
    name: str
    size: int
    mtime_ns: int


def open_range(path: str, start: int, length: int) -> bytes:
    """Return ``length`` bytes of a file from ``start``; fewer if the file ends before."""
    pieces = []
    with closing_descriptor(os.open(path, os.O_RDONLY | os.O_CLOEXEC)) as file:
        while length > 0:
            piece = os.pread(file, min(length, _LARGEST_READ), start)
            if not piece:
                break
            pieces.append(piece)
            start, length = start + len(piece), length - len(piece)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def check_version(file: DataFile) -> None:
    """Raise a `DataError` if a file has changed since it was indexed."""
    status = os.stat(file.path)
    if (status.st_size, status.st_mtime_ns) != (file.size, file.mtime_ns):
        raise DataError(
            f"'{file.path}' has changed since the stream was made: its records are no longer those "
            "of the index; make the stream again"
        )


def find_files(source: Any, suffixes: Iterable[str]) -> list[str]:
    """Return the paths that a source names, sorted within each folder and pattern.

    Args:
        source: a file, a folder, a pattern such as ``"data/*.jsonl"``, or several of these.
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
    path = local_path(source, "source")
    if path.is_dir():
        below = (one for one in path.rglob("*") if not _is_hidden(one.relative_to(path)))
        found = sorted(str(one) for one in below if one.suffix in suffixes and one.is_file())
        if not found:
            raise ValueError(f"the folder '{path}' holds no files that end in {_either(suffixes)}")
        return found
    if path.exists():
        return [str(path)]
    if glob.has_magic(str(path)):
        found = sorted(one for one in glob.glob(str(path), recursive=True) if os.path.isfile(one))
        if not found:
            raise ValueError(f"no file matches '{path}'")
        return found
    raise FileNotFoundError(f"there is no '{path}'{did_you_mean_path(path)}")


def status_of(paths: list[str]) -> tuple[str, list[DataFile]]:
    """Return the folder that holds all files, and the files with names relative to it."""
    full = [os.path.abspath(path) for path in paths]
    folder = os.path.commonpath([os.path.dirname(path) for path in full])
    files = []
    for path in full:
        status = os.stat(path)
        name = Path(path).relative_to(folder).as_posix()
        files.append(DataFile(path, name, status.st_size, status.st_mtime_ns))
    return folder, files


def _is_hidden(path: Path) -> bool:
    return any(part.startswith(".") for part in path.parts)


def _either(words: Iterable[str]) -> str:
    *most, last = words
    return f"{', '.join(most)} or {last}" if most else last
