"""Reading files of a run that nobody vouches for: no link is followed, nothing is waited for."""

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class Folder:
    """A folder below the runs folder, reached part by part so that no link leads out of it."""

    def __init__(self, root: Path, *parts: str) -> None:
        for part in parts:
            if part in ("", ".", "..") or "/" in part or "\0" in part:
                raise FileNotFoundError(errno.ENOENT, "no name of a file", part)
        self.root, self.parts = root, parts

    @property
    def path(self) -> Path:
        """Where it is."""
        return self.root.joinpath(*self.parts)

    def below(self, *parts: str) -> "Folder":
        """A folder in it, which need not exist."""
        return Folder(self.root, *self.parts, *parts)

    @contextmanager
    def opened(self) -> Iterator[int]:
        """A descriptor of the folder."""
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
        """A descriptor of a regular file in it."""
        Folder(self.root, name)
        with self.opened() as at:
            file = os.open(name, FILE, dir_fd=at)
        if not stat.S_ISREG(os.fstat(file).st_mode):
            os.close(file)
            raise FileNotFoundError(errno.ENOENT, "no regular file", name)
        return file

    def stats(self, *names: str) -> list[os.stat_result | None]:
        """Size and time of regular files in it, None for those that are not there."""
        try:
            with self.opened() as at:
                return [_stat(at, name) for name in names]
        except OSError:
            return [None] * len(names)

    def stat(self, name: str) -> os.stat_result | None:
        """The same of one."""
        return self.stats(name)[0]

    def folders(self) -> list[str]:
        """The names of the real folders in it, sorted."""
        try:
            with self.opened() as at, closing(os.scandir(at)) as entries:
                return sorted(one.name for one in entries if one.is_dir(follow_symlinks=False))
        except OSError:
            return []

    def files(self) -> list[str]:
        """The names of the regular files in it, sorted."""
        try:
            with self.opened() as at, closing(os.scandir(at)) as entries:
                return sorted(one.name for one in entries if one.is_file(follow_symlinks=False))
        except OSError:
            return []

    def head(self, name: str, limit: int) -> bytes:
        """The first bytes of a file; none where it cannot be read."""
        return self._part(name, limit, from_end=False)

    def tail(self, name: str, limit: int) -> bytes:
        """The last bytes of a file; none where it cannot be read."""
        return self._part(name, limit, from_end=True)

    def _part(self, name: str, limit: int, *, from_end: bool) -> bytes:
        try:
            file = self.open(name)
        except (OSError, ValueError):
            return b""
        try:
            at = max(0, os.fstat(file).st_size - limit) if from_end else 0
            return os.pread(file, limit, at)
        except OSError:
            return b""
        finally:
            os.close(file)


def _stat(folder: int, name: str) -> os.stat_result | None:
    try:
        found = os.stat(name, dir_fd=folder, follow_symlinks=False)
    except (OSError, ValueError):
        return None
    return found if stat.S_ISREG(found.st_mode) else None
