"""Fault injection: damaged files, failing disks, and signals.

Functions damage existing files. Context managers make something fail inside their block, in this
process and in processes forked from it.
"""

import errno
import os
import signal
import stat
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import sleep
from typing import Any

_Write = Callable[[int, Any], int]


def flip_bit(path: str | Path, bit: int | None = None) -> None:
    """Flip one bit of a file: the given one, or one in the middle."""
    path = Path(path)
    data = bytearray(path.read_bytes())
    if not data:
        raise ValueError(f"'{path}' is empty, so it has no bit to flip")
    bit = len(data) * 4 if bit is None else bit
    data[bit // 8] ^= 1 << bit % 8
    with path.open("rb+") as file:
        file.write(data)


def truncate(path: str | Path, size: int | None = None) -> None:
    """Truncate a file to a size, by default to half; a negative size counts from the end."""
    total = os.path.getsize(path)
    size = total // 2 if size is None else size
    os.truncate(path, size if size >= 0 else max(0, total + size))


def remove(path: str | Path) -> None:
    """Delete a file."""
    os.unlink(path)


@contextmanager
def read_only(folder: str | Path) -> Iterator[None]:
    """Make a folder and its subfolders read-only.

    This does not stop root: in a process of root use `failing_writes` with ``errno.EROFS``.
    """
    folder = Path(folder)
    folders = [folder, *(path for path in folder.rglob("*") if path.is_dir())]
    modes = {path: stat.S_IMODE(path.stat().st_mode) for path in folders}
    writable = stat.S_IWUSR | stat.S_IWGRP | stat.S_IWOTH
    for path, mode in modes.items():
        path.chmod(mode & ~writable)
    try:
        yield
    finally:
        for path, mode in modes.items():
            if path.exists():
                path.chmod(mode)


@contextmanager
def disk_full(after: int = 0) -> Iterator[None]:
    """Make the disk full for checkpoints after this many more bytes."""
    with failing_writes(errno.ENOSPC, after):
        yield


@contextmanager
def failing_writes(number: int, after: int = 0) -> Iterator[None]:
    """Make `os.write` to files fail with error ``number`` after this many bytes.

    The write that exceeds the limit is partial, as on a real disk. Files opened with `open` are not
    affected; use `file_size_limit` for those.
    """
    left, lock = after, threading.Lock()

    def write(real: _Write, file: int, data: Any) -> int:
        nonlocal left
        view = memoryview(data).cast("B")
        with lock:
            if len(view) and left <= 0:
                raise OSError(number, os.strerror(number))
            taken = min(left, len(view))
            left -= taken
        return real(file, view[:taken])

    with _replaced_write(write):
        yield


@contextmanager
def slow_disk(seconds: float = 0.1) -> Iterator[None]:
    """Delay every `os.write` to a file."""

    def write(real: _Write, file: int, data: Any) -> int:
        sleep(seconds)
        return real(file, data)

    with _replaced_write(write):
        yield


@contextmanager
def file_size_limit(size: int) -> Iterator[None]:
    """Limit the size of files in bytes, however they are written (POSIX only)."""
    import resource

    previous = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # raise OSError instead
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, previous[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, previous)
        signal.signal(signal.SIGXFSZ, handler)


def terminate(pid: int | None = None) -> None:
    """Send SIGTERM to a process, by default this one, as a preempted machine does."""
    os.kill(os.getpid() if pid is None else pid, signal.SIGTERM)


@contextmanager
def _replaced_write(write: Callable[[_Write, int, Any], int]) -> Iterator[None]:
    """Replace `os.write` to regular files, but not to pipes and terminals."""
    real = os.write

    def replacement(file: int, data: Any) -> int:
        regular = stat.S_ISREG(os.fstat(file).st_mode)
        return write(real, file, data) if regular else real(file, data)

    os.write = replacement
    try:
        yield
    finally:
        os.write = real
