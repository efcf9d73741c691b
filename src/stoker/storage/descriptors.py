"""File descriptors: open a file that nobody vouches for, and close it at the end."""

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def open_regular(path: str | Path, *, dir_fd: int | None = None) -> int:
    """Open a regular file to read it; a link is not followed, and a pipe does not block.

    Args:
        path: the file.
        dir_fd: the open folder that a relative path starts from.
    """
    file = os.open(path, _READ, dir_fd=dir_fd)
    if not stat.S_ISREG(os.fstat(file).st_mode):
        os.close(file)
        raise OSError(errno.EINVAL, "it is not a regular file", str(path))
    return file


@contextmanager
def closing_descriptor(file: int) -> Iterator[int]:
    """Close a descriptor at the end."""
    try:
        yield file
    finally:
        os.close(file)
