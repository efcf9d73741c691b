"""Read files that nobody vouches for: no link is followed, no pipe blocks, no read is unbounded."""

import errno
import json
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, NoReturn

from stoker.storage.descriptors import closing_descriptor, open_regular

DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


class SafeFolder:
    """A folder below a root, opened part by part so that no link leads out of the root.

    Args:
        root: a folder that you trust; it may be a link.
        parts: the names of the folders below it.
    """

    def __init__(self, root: Path, *parts: str) -> None:
        for part in parts:
            if part in ("", ".", "..") or "/" in part or "\0" in part:
                raise FileNotFoundError(errno.ENOENT, "not a file name", part)
        self.root, self.parts = root, parts

    @property
    def path(self) -> Path:
        """The path of the folder."""
        return self.root.joinpath(*self.parts)

    def below(self, *parts: str) -> "SafeFolder":
        """Return a folder inside this one, which may not exist."""
        return SafeFolder(self.root, *self.parts, *parts)

    @contextmanager
    def opened(self) -> Iterator[int]:
        """Open the folder and yield its descriptor."""
        at = os.open(self.root, DIRECTORY)
        try:
            for part in self.parts:
                inner = os.open(part, DIRECTORY | os.O_NOFOLLOW, dir_fd=at)
                os.close(at)
                at = inner
            yield at
        finally:
            os.close(at)

    def open(self, name: str) -> int:
        """Open a regular file in the folder and return its descriptor."""
        SafeFolder(self.root, name)
        with self.opened() as at:
            return open_regular(name, dir_fd=at)

    def stats(self, *names: str) -> list[os.stat_result | None]:
        """Return size and time of regular files in the folder, None for those that are missing."""
        try:
            with self.opened() as at:
                return [_stat(at, name) for name in names]
        except OSError:
            return [None] * len(names)

    def stat(self, name: str) -> os.stat_result | None:
        """Return size and time of a regular file in the folder, None if it is missing."""
        return self.stats(name)[0]

    def folders(self) -> list[str]:
        """Return the sorted names of the folders in this one, without links."""
        return self._names(lambda entry: entry.is_dir(follow_symlinks=False))

    def files(self) -> list[str]:
        """Return the sorted names of the regular files in the folder."""
        return self._names(lambda entry: entry.is_file(follow_symlinks=False))

    def _names(self, wanted: "Callable[[os.DirEntry[str]], bool]") -> list[str]:
        try:
            with self.opened() as at, closing(os.scandir(at)) as entries:
                return sorted(entry.name for entry in entries if wanted(entry))
        except OSError:
            return []

    def read(self, name: str, limit: int) -> bytes:
        """Return the contents of a file of at most ``limit`` bytes.

        Raises:
            OSError: the file is missing, larger, a link, or cannot be read.
        """
        with closing_descriptor(self.open(name)) as file:
            if os.fstat(file).st_size > limit:
                raise OSError(errno.EFBIG, f"it is larger than {limit:,} bytes", name)
            return os.pread(file, limit, 0)

    def head(self, name: str, limit: int) -> bytes:
        """Return the first bytes of a file, none if it cannot be read."""
        return self._part(name, limit, from_end=False)

    def tail(self, name: str, limit: int) -> bytes:
        """Return the last bytes of a file, none if it cannot be read."""
        return self._part(name, limit, from_end=True)

    def _part(self, name: str, limit: int, *, from_end: bool) -> bytes:
        try:
            with closing_descriptor(self.open(name)) as file:
                at = max(0, os.fstat(file).st_size - limit) if from_end else 0
                return os.pread(file, limit, at)
        except (OSError, ValueError):
            return b""


def _stat(folder: int, name: str) -> os.stat_result | None:
    try:
        found = os.stat(name, dir_fd=folder, follow_symlinks=False)
    except (OSError, ValueError):
        return None
    return found if stat.S_ISREG(found.st_mode) else None


def _choose_parser() -> Callable[[bytes], Any]:
    """Return orjson's parser where the board has brought it, else an equally strict one."""
    try:
        import orjson
    except ImportError:
        return _parse_strictly
    return orjson.loads


def _parse_strictly(data: bytes) -> Any:
    def reject(constant: str) -> NoReturn:
        raise ValueError(f"{constant} is not JSON")

    try:
        return json.loads(data.decode(), parse_constant=reject)
    except RecursionError as error:
        raise ValueError("it is nested too deep") from error


parse_json = _choose_parser()
"""Parse JSON; a `ValueError` says what is wrong with it."""
