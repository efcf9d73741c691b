"""Faults on purpose: damaged files, bad disks, and signals.

Functions damage what is there; context managers make something fail for as long as they last. All
of them act in this process, and in those that are forked meanwhile.
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
    """Turn over one bit of a file: the one in the middle, unless its number is given."""
    path = Path(path)
    data = bytearray(path.read_bytes())
    if not data:
        raise ValueError(f"'{path}' is empty: it has no bit to flip")
    bit = len(data) * 4 if bit is None else bit
    data[bit // 8] ^= 1 << bit % 8
    with path.open("rb+") as file:
        file.write(data)


def truncate(path: str | Path, size: int | None = None) -> None:
    """Cut a file off, in its middle unless a size is given; negative ones count from the end."""
    whole = os.path.getsize(path)
    size = whole // 2 if size is None else size
    os.truncate(path, size if size >= 0 else max(0, whole + size))


def remove(path: str | Path) -> None:
    """Take a file away."""
    os.unlink(path)


@contextmanager
def read_only(folder: str | Path) -> Iterator[None]:
    """Within it, nothing can be written to a folder and those in it.

    Root may write all the same, so where this process is root's, `failing_writes` with
    ``errno.EROFS`` is the fault to use.
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
    """Within it, there is room for so many bytes more in checkpoints, then for none."""
    with failing_writes(errno.ENOSPC, after):
        yield


@contextmanager
def failing_writes(number: int, after: int = 0) -> Iterator[None]:
    """Within it, what is written with `os.write` fails after so many bytes, with that error.

    The write that comes over the limit is done in part, as a disk does it. Files that are opened
    with `open` are not concerned; `file_size_limit` is for those.
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

    with _writing(write):
        yield


@contextmanager
def slow_disk(seconds: float = 0.1) -> Iterator[None]:
    """Within it, every `os.write` to a file takes so much longer."""

    def write(real: _Write, file: int, data: Any) -> int:
        sleep(seconds)
        return real(file, data)

    with _writing(write):
        yield


@contextmanager
def file_size_limit(size: int) -> Iterator[None]:
    """Within it, the system lets no file grow beyond a size, whoever writes it (POSIX only)."""
    import resource

    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # an error, not the end
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)


def terminate(pid: int | None = None) -> None:
    """Send SIGTERM, as a machine does that is wanted by others; to this process unless said."""
    os.kill(os.getpid() if pid is None else pid, signal.SIGTERM)


@contextmanager
def _writing(write: Callable[[_Write, int, Any], int]) -> Iterator[None]:
    """Within it, `os.write` to a regular file goes another way; pipes and terminals do not."""
    real = os.write

    def instead(file: int, data: Any) -> int:
        regular = stat.S_ISREG(os.fstat(file).st_mode)
        return write(real, file, data) if regular else real(file, data)

    os.write = instead
    try:
        yield
    finally:
        os.write = real
