"""One live run per folder: a lock that a killed owner cannot keep."""

import errno
import fcntl
import json
import os
import socket
import weakref
from pathlib import Path

from stoker.core.errors import CheckpointError
from stoker.core.log import get_logger

_UNSUPPORTED = {errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS, errno.EINVAL}


class Lock:
    """The right to write into a folder, held by the operating system and lost with the process.

    Beside it, the file says who the owner is. Where the file system has no locks, that alone
    decides: an owner on this machine counts if it still runs, by its id and its start time.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / ".lock"
        self._file: int | None = None

    def take(self) -> None:
        """Become the owner, or say who is."""
        if self._file is not None:
            return
        file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            held = _is_held(file)
            owner = owner_in(os.pread(file, 4096, 0))
            if held or (owner is not None and is_alive(owner)):
                raise CheckpointError(self._refusal(owner))
            if owner is not None:
                who = f"process {owner['pid']} on {owner['host']}"
                get_logger().warning(f"took over '{self._path.parent}' from {who}, which is gone")
            _say_owner(file, json.dumps(_me()))
        except BaseException:
            os.close(file)
            raise
        self._file = file
        _close_in_children(self)

    def release(self) -> None:
        """Give the right back."""
        if self._file is not None:
            _say_owner(self._file, "")
            self.drop()

    def drop(self) -> None:
        """Close the file; the owner's copy of it, in the parent of a fork, is not touched."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _refusal(self, owner: dict[str, object] | None) -> str:
        who = "another process"
        if owner is not None:
            who = f"process {owner['pid']} on {owner['host']}"
        return f"'{self._path.parent}' is in use by {who}, expected a folder no run writes into"


def _is_held(file: int) -> bool:
    """Take the system's lock; whether somebody else has it."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError as error:
        if error.errno not in _UNSUPPORTED:
            raise
    return False


def _close_in_children(lock: Lock) -> None:
    # a worker that outlives a killed owner would keep the lock through its copy of the file
    held = weakref.ref(lock)

    def close() -> None:
        if (lock := held()) is not None:
            lock.drop()

    os.register_at_fork(after_in_child=close)


def _me() -> dict[str, object]:
    pid = os.getpid()
    return {"pid": pid, "host": socket.gethostname(), "started": _started(pid)}


def owner_in(text: bytes) -> dict[str, object] | None:
    """The owner that the file of a lock names; None after a release."""
    try:
        owner = json.loads(text)
        return owner if isinstance(owner, dict) and {"pid", "host"} <= owner.keys() else None
    except (ValueError, RecursionError):  # empty after a release, torn after a kill
        return None


def _say_owner(file: int, text: str) -> None:
    os.ftruncate(file, 0)
    os.pwrite(file, text.encode(), 0)


def is_alive(owner: dict[str, object]) -> bool:
    """Whether the owner surely runs on this machine, and is not another one with its id."""
    if owner["host"] != socket.gethostname():
        return False
    pid = owner["pid"]
    started = _started(pid) if isinstance(pid, int) else None
    return started is not None and started == owner.get("started")


def _started(pid: int) -> str | None:
    """When a process was started, in ticks since this boot; None if it does not run."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] == "Z" else f"{boot}/{fields[19]}"
