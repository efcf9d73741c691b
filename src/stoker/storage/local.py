"""The local disk: durable writes, memory-mapped reads, atomic renames."""

import errno
import os
import shutil
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from io import FileIO
from mmap import ACCESS_COPY, ALLOCATIONGRANULARITY, mmap
from pathlib import Path

import xxhash

from stoker.core.errors import WriteError
from stoker.storage import crash_points
from stoker.storage.descriptors import closing_descriptor, open_regular
from stoker.storage.lock import Lock
from stoker.storage.storage import FileRecord, OnLost

_READ_BLOCK = 32 << 20
"""Bytes per read. Each call has to get the GIL back from the training loop, so calls are few."""

_WRITE_BLOCK = 1 << 30
"""Bytes per write; Linux accepts slightly less than 2 GiB per call."""

_TRASH = ".trash-"


class LocalStorage:
    """A folder on the local disk.

    Links inside the folder are not followed, so nothing outside of it is read or written.

    Args:
        folder: the path.
        may_be_link: whether the folder itself may be a link.
    """

    def __init__(self, folder: Path, *, may_be_link: bool = True) -> None:
        self.folder = folder
        self._may_be_link = may_be_link

    def __str__(self) -> str:
        """Return the path of the folder."""
        return str(self.folder)

    def below(self, name: str) -> "LocalStorage":
        """Return a folder inside this one."""
        return LocalStorage(self.folder / name, may_be_link=False)

    def create(self) -> None:
        """Make the folder and its parents."""
        self.folder.mkdir(parents=True, exist_ok=True)

    def list(self) -> list[str]:
        """Return the names in the folder."""
        return sorted(os.listdir(self.folder)) if self.folder.is_dir() else []

    def size(self, name: str) -> int | None:
        """Return the size of a file."""
        try:
            self._check_folder()
            found = os.lstat(self.folder / name)
        except OSError:
            return None
        return found.st_size if stat.S_ISREG(found.st_mode) else None

    def read(self, name: str) -> bytes:
        """Return the contents of a file."""
        with self._open(name) as file:
            return file.read()

    def read_range(self, name: str, start: int, length: int) -> memoryview:
        """Return part of the file as a memory map; the disk is read when a byte is used.

        The map lasts as long as the buffer, so that what was read does not stay in memory.
        """
        with self._open(name) as file:
            if os.fstat(file.fileno()).st_size < start + length:
                raise ValueError(f"'{name}' in '{self}' is shorter than {start + length} bytes")
            if not length:
                return memoryview(b"")
            before = start % ALLOCATIONGRANULARITY
            mapped = mmap(file.fileno(), before + length, access=ACCESS_COPY, offset=start - before)
        return memoryview(mapped)[before:]

    def blocks(self, name: str, cuts: Iterable[int], most: int) -> Iterator[bytes]:
        """Yield a file in blocks of at most ``most`` bytes, cut also at these positions.

        Unlike `read_range` this maps nothing into memory.
        """
        with self._open(name) as file:
            start = 0
            for end in [*cuts, os.fstat(file.fileno()).st_size]:
                while start < end:
                    block = os.pread(file.fileno(), min(most, end - start), start)
                    if not block:
                        raise OSError(errno.EIO, "it became shorter while it was read", name)
                    yield block
                    start += len(block)

    def _check_folder(self) -> None:
        if not self._may_be_link and self.folder.is_symlink():
            raise OSError(errno.ELOOP, "its folder is a link, which is not followed", str(self))

    def _open(self, name: str) -> FileIO:
        """Open a regular file to read it; a link is not followed, and a pipe does not block."""
        self._check_folder()
        try:
            return FileIO(open_regular(self.folder / name), "rb")
        except OSError as error:
            if error.errno == errno.ELOOP:
                error.strerror = "it is a link, which is not followed"
            raise

    def checksum(self, name: str) -> str:
        """Return the checksum of a file, read again from the disk where the system allows it."""
        checksum = xxhash.xxh3_128()
        with self._open(name) as file:
            size = os.fstat(file.fileno()).st_size
            buffer = memoryview(bytearray(min(_READ_BLOCK, max(size, 1))))
            if hasattr(os, "posix_fadvise"):
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            while count := file.readinto(buffer):
                checksum.update(buffer[:count])
        return checksum.hexdigest()

    def write(self, name: str, blocks: Iterable[memoryview | bytes]) -> FileRecord:
        """Write a new file and sync it; each block is hashed and written by one call."""
        checksum, size = xxhash.xxh3_128(), 0
        mode = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        with closing_descriptor(os.open(self.folder / name, mode, 0o666)) as file:
            for block in blocks:
                checksum.update(block)
                _write_all(file, memoryview(block))
                size += len(block)
            crash_points.at("file-written")
            os.fsync(file)
        crash_points.at("file-synced")
        return FileRecord(size, checksum.hexdigest())

    def link(self, name: str, source: "LocalStorage") -> None:
        """Give the file of this name in another folder a second name, in this one.

        Raises:
            OSError: the folders are on different disks, or the disk cannot do it.
        """
        source._check_folder()
        os.link(source.folder / name, self.folder / name, follow_symlinks=False)
        crash_points.at("file-linked")

    def delete(self, name: str) -> None:
        """Rename to ``.trash-…``, from which moment it is gone, then remove the files."""
        crash_points.at("before-removal")
        path = self.folder / name
        trash = path.with_name(_TRASH + path.name.removeprefix(_TRASH).lstrip("."))
        if trash != path:
            with suppress(OSError):
                _remove(trash)
            os.rename(path, trash)
        crash_points.at("trashed")
        _remove(trash)
        crash_points.at("removed")

    def publish(self, source: str, target: str, *, replaced: str | None = None) -> None:
        """Sync the folder, rename it, sync its parent."""
        old, new = self.folder / source, self.folder / target
        _sync(old)
        crash_points.at("before-rename")
        if os.path.lexists(new):
            if replaced is None:
                raise FileExistsError(f"'{new}' already exists")
            os.rename(new, self.folder / replaced)
            crash_points.at("set-aside")
        os.rename(old, new)
        crash_points.at("renamed")
        _sync(new.parent)

    def lease(self, on_lost: OnLost = lambda error: None) -> Lock:
        """Take the lease of the folder."""
        lock = Lock(self.folder, on_lost)
        lock.acquire()
        return lock

    def free_bytes(self) -> int:
        """Return the free space of the disk."""
        return shutil.disk_usage(self.folder).free


@contextmanager
def atomic_file(path: Path, *, durable: bool = True) -> Iterator[Path]:
    """Yield a temporary path next to ``path``, and move the file written there into its place.

    Readers see the old file or the complete new one. If the block raises, nothing changes. What
    is not a regular file, such as ``/dev/stdout``, is written directly.

    >>> with atomic_file(Path("weights.pt")) as temporary:    # doctest: +SKIP
    ...     torch.save(weights, temporary)

    Args:
        path: the file; missing parent folders are made.
        durable: sync it before the rename, so that it also survives a power failure. Pass False
            for files that can be made again.
    """
    if path.exists() and not path.is_file():
        yield path
        return
    path = path.resolve() if path.is_symlink() else path
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.partial-{os.getpid()}{path.suffix}")
    try:
        yield temporary
        temporary.chmod(_default_mode())  # safetensors makes files that only their owner can read
        if durable:
            _sync(temporary)
        os.replace(temporary, path)
        if durable:
            _sync(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def explain_write_errors(path: Path) -> Iterator[None]:
    """Turn an `OSError` of the block into a `WriteError` that names the file and the free space."""
    try:
        yield
    except WriteError:
        raise
    except OSError as error:
        space = ""
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            with suppress(OSError):
                space = f" ({format_size(shutil.disk_usage(path.parent).free)} free)"
        reason = error.strerror or str(error) or type(error).__name__
        raise WriteError(
            f"'{path}' cannot be written: {reason}{space}; make room for it or make it writable, "
            "then run the same command again: a run with checkpoints resumes",
            error,
        ) from error


def write_atomic(path: Path, content: str | bytes, *, durable: bool = True) -> None:
    """Write text (as UTF-8) or bytes as a complete file; see `atomic_file`."""
    with explain_write_errors(path), atomic_file(path, durable=durable) as temporary:
        temporary.write_bytes(content.encode() if isinstance(content, str) else content)


def replace_link(link: Path, target: Path) -> None:
    """Make or change a relative symbolic link atomically; a folder of that name is kept."""
    relative = os.path.relpath(target, link.parent)
    if link.is_symlink() and os.readlink(link) == relative:
        return
    temporary = link.with_name(f".{link.name}.partial-{os.getpid()}")
    temporary.unlink(missing_ok=True)
    temporary.symlink_to(relative)
    try:
        os.replace(temporary, link)
    except IsADirectoryError:
        temporary.unlink()


def format_size(size: float) -> str:
    """Return a number of bytes for display: ``"1.2 GB"``."""
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" or size >= 100 else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"


def _write_all(file: int, block: memoryview) -> None:
    while block:
        block = block[os.write(file, block[:_WRITE_BLOCK]) :]


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()


def _sync(path: Path) -> None:
    """Wait until a file, or the names in a folder, are on the disk."""
    with closing_descriptor(os.open(path, os.O_RDONLY | os.O_CLOEXEC)) as file:
        os.fsync(file)


def _default_mode() -> int:
    """Return the permissions of a new file under the current umask."""
    mask = os.umask(0)  # the umask can only be read by replacing it
    os.umask(mask)
    return 0o666 & ~mask
