"""The `Storage` protocol: what a checkpoint needs from the place it is stored in."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from stoker.core.errors import CheckpointError


@dataclass(frozen=True, slots=True)
class FileRecord:
    """Size and checksum of a file, as a manifest lists them."""

    size: int
    xxh3_128: str


class Lease(Protocol):
    """The exclusive right to write into a folder.

    It is renewed in the background. It ends with the process that holds it, and other processes may
    take it once it is no longer renewed.
    """

    def check(self) -> None:
        """Raise a `CheckpointError` if another process has taken the lease."""

    def release(self) -> None:
        """Let others write."""


OnLost: TypeAlias = Callable[[CheckpointError], None]
"""Called in a background thread if another process has taken a lease."""


class Storage(Protocol):
    """One folder of files. Names are relative to it and use ``/``; ``str()`` shows where it is.

    Errors of the medium are `OSError`, as for files on the local disk.
    """

    def below(self, name: str) -> "Storage":
        """Return the folder ``name`` inside this one; it need not exist."""

    def create(self) -> None:
        """Make the folder, with its parents, unless it exists."""

    def list(self) -> list[str]:
        """Return the sorted names of files and folders in it; an absent folder has none."""

    def size(self, name: str) -> int | None:
        """Return the size of a file in bytes, None if there is no such file."""

    def read(self, name: str) -> bytes:
        """Return the contents of a file."""

    def read_range(self, name: str, start: int, length: int) -> memoryview:
        """Return part of a file as a buffer, without a copy where possible.

        Writing to the buffer does not change the file.

        Raises:
            ValueError: the file is shorter than that.
        """

    def checksum(self, name: str) -> str:
        """Return the checksum of a file, computed from the medium rather than from a cache."""

    def write(self, name: str, blocks: Iterable[memoryview | bytes]) -> FileRecord:
        """Write a new file and return when it is durable.

        Returns:
            Size and checksum of the blocks that were passed, whatever reached the medium.
        """

    def delete(self, name: str) -> None:
        """Delete a file or folder; a folder is either complete or no longer listed by its name."""

    def publish(self, source: str, target: str, *, replaced: str | None = None) -> None:
        """Give a finished folder its final name, durably.

        A reader sees the complete folder or none: the file that was written to it last becomes
        visible last.

        Args:
            source: the folder.
            target: its new name.
            replaced: the name under which a folder that is already called ``target`` is kept.

        Raises:
            FileExistsError: ``target`` exists, and ``replaced`` is None.
        """

    def lease(self, on_lost: OnLost = ...) -> Lease:
        """Become the only process that writes into the folder.

        Args:
            on_lost: called if another process has taken the lease.

        Raises:
            CheckpointError: another process holds the lease.
        """

    def free_bytes(self) -> int | None:
        """Return how many bytes can still be written, None if there is no such limit."""
