"""The lease of a local folder: a lock that a killed owner cannot keep."""

import errno
import fcntl
import json
import os
import socket
import weakref
from pathlib import Path

from stoker.core.errors import CheckpointError
from stoker.rundir import files

_UNSUPPORTED = {errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS, errno.EINVAL}


class Lock:
    """The exclusive right to write into a folder, held by the operating system.

    The file ``.lock`` names its owner. On a file system without locks the name alone decides: an
    owner on this machine counts if it is still running, by process id and start time.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / files.LOCK
        self._file: int | None = None

    def acquire(self) -> None:
        """Take the lock, or raise a `CheckpointError` that names its owner."""
        if self._file is not None:
            return
        file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            held = _is_held(file)
            owner = parse_owner(os.pread(file, 4096, 0))
            if held or (owner is not None and is_running(owner)):
                who = "another process" if owner is None else _describe(owner)
                raise CheckpointError(
                    f"'{self._path.parent}' is in use by {who}: wait for it, or use another folder"
                )
            if owner is not None:
                from stoker.core.log import get_logger  # imports torch

                get_logger().warning(
                    f"taking over '{self._path.parent}' from {_describe(owner)}, which is gone"
                )
            _write_owner(file, json.dumps(_this_process()))
        except BaseException:
            os.close(file)
            raise
        self._file = file
        _close_in_children(self)

    def release(self) -> None:
        """Give the lock back."""
        if self._file is not None:
            _write_owner(self._file, "")
            self.close()

    def close(self) -> None:
        """Close the file. In a forked child this leaves the parent's lock in place."""
        if self._file is not None:
            os.close(self._file)
            self._file = None


def parse_owner(text: bytes) -> dict[str, object] | None:
    """Return the owner that a lock file names, None after a release."""
    try:
        owner = json.loads(text)
        return owner if isinstance(owner, dict) and {"pid", "host"} <= owner.keys() else None
    except (ValueError, RecursionError):  # empty after a release, torn after a kill
        return None


def is_running(owner: dict[str, object]) -> bool:
    """Return whether the owner runs on this machine, and is not another process with its id."""
    if owner["host"] != socket.gethostname():
        return False
    pid = owner["pid"]
    started = _start_time(pid) if isinstance(pid, int) else None
    return started is not None and started == owner.get("started")


def _is_held(file: int) -> bool:
    """Take the lock of the operating system; return whether another process has it."""
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
    reference = weakref.ref(lock)

    def close() -> None:
        if (lock := reference()) is not None:
            lock.close()

    os.register_at_fork(after_in_child=close)


def _this_process() -> dict[str, object]:
    pid = os.getpid()
    return {"pid": pid, "host": socket.gethostname(), "started": _start_time(pid)}


def _describe(owner: dict[str, object]) -> str:
    return f"process {owner['pid']} on {owner['host']}"


def _write_owner(file: int, text: str) -> None:
    os.ftruncate(file, 0)
    os.pwrite(file, text.encode(), 0)


def _start_time(pid: int) -> str | None:
    """Return when a process was started, in ticks since this boot; None if it does not run."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] == "Z" else f"{boot}/{fields[19]}"
