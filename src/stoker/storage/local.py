"""Files that are on the disk when the call returns, and their checksums."""

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import xxhash

from stoker.storage import crash_points as points

_READ = 32 << 20
"""How much is read at a time. Each call has to win Python's lock back from the training, which can
take its time; so calls are few and large, and a block in memory is summed and written by one."""

_WRITE = 1 << 30
"""Less than what Linux takes in one call."""


@dataclass(frozen=True, slots=True)
class Record:
    """What a manifest keeps of a file."""

    size: int
    xxh3_128: str


def write_file(path: Path, blocks: Iterable[memoryview | bytes]) -> Record:
    """Write a new file to the disk; the checksum is of what was meant to be written."""
    checksum, size = xxhash.xxh3_128(), 0
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    try:
        for block in blocks:
            checksum.update(block)
            _write_all(file, memoryview(block))
            size += len(block)
        points.at("file-written")
        os.fsync(file)
    finally:
        os.close(file)
    points.at("file-synced")
    return Record(size, checksum.hexdigest())


def checksum_of(path: Path) -> str:
    """The checksum of a file, read from the disk rather than from memory where possible."""
    checksum = xxhash.xxh3_128()
    buffer = memoryview(bytearray(min(_READ, max(path.stat().st_size, 1))))
    with path.open("rb", buffering=0) as file:
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        while count := file.readinto(buffer):
            checksum.update(buffer[:count])
    return checksum.hexdigest()


def sync_folder(folder: Path) -> None:
    """Make names that were added to or taken from a folder last."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _write_all(file: int, piece: memoryview) -> None:
    while piece:
        piece = piece[os.write(file, piece[:_WRITE]) :]


def said_size(size: float) -> str:
    """A number of bytes for people."""
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" or size >= 100 else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"


def usual_mode() -> int:
    """Who may read and write a new file, where a library makes it more private than that."""
    mask = os.umask(0)  # Python tells only the one that it replaces
    os.umask(mask)
    return 0o666 & ~mask
