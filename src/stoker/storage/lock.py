"""The lease of a local folder: its owner renews it, and loses it once it no longer does.

    .lock/00000007.json     the owner: who, since when, and a counter that grows with each renewal

The file with the highest number is the lease. The next owner is the process that creates the next
number: only one can, on every file system and from every host, also where `flock` does nothing.
A process that finds a higher number than its own has lost the lease.
"""

import json
import os
import socket
import threading
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from errno import ENOSYS, ENOTSUP, EOPNOTSUPP, EPERM, ESTALE
from functools import cache
from pathlib import Path

from stoker.core.errors import CheckpointError
from stoker.core.process import process_stat
from stoker.core.timers import timed_guard
from stoker.rundir import files
from stoker.storage.descriptors import closing_descriptor, open_regular
from stoker.storage.storage import OnLost

PERIOD = 60.0
"""Seconds without a renewal after which the owner of a lease counts as gone."""

_RENEWALS = 6
"""Renewals per period."""

_LENGTH = 1024
"""The size of the file, always the same, so that a renewal overwrites it in place."""

_given_back: set[str] = set()
"""The tokens of leases that this process has given back, even if that could not be written."""

_LARGEST_NUMBER = 10**8
_NO_HARD_LINKS = {EPERM, ENOTSUP, EOPNOTSUPP, ENOSYS}


@dataclass(frozen=True, slots=True)
class Owner:
    """The owner of a lease, as its file describes it.

    Args:
        token: a random text that no other owner has.
        host: the name of its machine, to show it.
        kernel: equal for processes that see each other's ids; None if unknown.
        pid: its process id.
        started: when the process started; another one with the same id has started later.
        since: when it acquired the lease, in seconds since 1970 by its own clock.
        renewed: when it last renewed the lease.
        renewals: how often it has done so.
        released: whether it has given the lease back.
    """

    token: str
    host: str
    kernel: str | None
    pid: int
    started: str | None
    since: float
    renewed: float
    renewals: int = 0
    released: bool = False

    def __str__(self) -> str:
        """Return who it is."""
        return f"process {self.pid} on {self.host}"

    @classmethod
    def this_process(cls) -> "Owner":
        """Return this process as an owner."""
        pid, now = os.getpid(), round(time.time(), 3)
        token, host = os.urandom(8).hex(), socket.gethostname()
        return cls(token, host, _kernel(), pid, process_stat(pid)[1] or None, now, now)

    def is_running(self) -> bool | None:
        """Return whether the process runs; None if that cannot be known on this machine."""
        if self.kernel != _kernel() or (self.kernel is None and self.host != socket.gethostname()):
            return None
        state, started = process_stat(self.pid)
        if state not in ("", "Z"):
            return started == self.started
        try:
            os.kill(self.pid, 0)
        except (ProcessLookupError, OverflowError):
            return False
        except PermissionError:
            pass
        return False if state == "Z" else None


class Lock:
    """The exclusive right to write into a folder.

    Clocks of different hosts are never compared. An owner on this machine counts while its process
    exists, even if it is stopped. Any other owner counts while it renews the lease: `acquire`
    watches its file for up to `PERIOD` seconds.

    Args:
        folder: the folder.
        on_lost: called in a background thread if another process has taken the lease.
    """

    def __init__(self, folder: Path, on_lost: OnLost = lambda error: None) -> None:
        self._where = str(folder)
        self._folder = folder / files.LOCK
        self._on_lost = on_lost
        self._number = 0
        self._owner: Owner | None = None
        self._done = threading.Event()
        self._writing = threading.Lock()

    @timed_guard("lease, at the start")
    def acquire(self) -> None:
        """Take the lease, or raise a `CheckpointError` that names its owner."""
        if self._owner is not None:
            return
        self._prepare()
        while not self._take(self._wait_until_free() + 1):
            pass
        self._done = threading.Event()
        threading.Thread(
            target=self._renew_until, args=(self._done,), name="stoker-lease", daemon=True
        ).start()

    def check(self) -> None:
        """Raise a `CheckpointError` if another process has taken the lease."""
        number = _highest(self._names())
        if self._owner is None or number <= self._number:
            return
        who = parse_owner(self._read(lease_name(number))) or "another process"
        raise CheckpointError(
            f"this run has lost '{self._where}' to {who}, which saw it renew its lease for "
            f"{PERIOD:g} s no more: it stops, and nothing of the new owner's is overwritten"
        )

    def release(self) -> None:
        """Give the lease back. In a forked child this leaves the parent's lease in place."""
        if self._owner is None or self._owner.pid != os.getpid():
            return
        self._done.set()
        _given_back.add(self._owner.token)
        with self._writing, suppress(OSError):
            self._write(replace(self._owner, released=True))
        self._owner = None

    # Taking it

    def _wait_until_free(self) -> int:
        """Return the number of the last lease when its owner is gone; raise while it is there."""
        while True:
            number, text = self._newest()
            owner = parse_owner(text)
            if number == 0 or (owner is not None and _is_released(owner)):
                return number
            running = owner.is_running() if owner is not None else None
            if running is None:
                running = not self._is_silent(number, text, owner)
                owner = parse_owner(self._newest()[1])
            if running and owner is not None and not owner.released:
                raise CheckpointError(_in_use(self._where, owner))
            if running:
                continue  # the lease has just changed hands
            who = owner or "a process"
            _warn(f"taking over '{self._where}' from {who}, which is gone")
            return number

    def _is_silent(self, number: int, text: bytes, owner: Owner | None) -> bool:
        """Watch a lease; return whether it is the same after a full period by our own clock."""
        _warn(
            f"'{self._where}' is held by {owner or 'a process'}, which cannot be seen from "
            f"here: waiting up to {PERIOD:g} s for a sign of life"
        )
        deadline = time.monotonic() + PERIOD
        while time.monotonic() < deadline:
            time.sleep(min(0.5, PERIOD / 20))
            if self._newest() != (number, text):
                return False
        return True

    def _newest(self) -> tuple[int, bytes]:
        number = _highest(self._names())
        return number, self._read(lease_name(number)) if number else b""

    def _take(self, number: int) -> bool:
        """Create the lease of a number; return False if another process was faster."""
        owner = Owner.this_process()
        if not self._create(number, owner):
            return False
        names = self._names()
        if _highest(names) != number:  # the number had been used and removed before
            self._remove([lease_name(number)])
            return False
        self._remove([name for name in names if name != lease_name(number)])
        self._number, self._owner = number, owner
        return True

    # Renewing it

    def _renew_until(self, done: threading.Event) -> None:
        while not done.wait(PERIOD / _RENEWALS):
            try:
                self._keep()
            except CheckpointError as error:
                self._on_lost(error)
                return
            except OSError:  # the disk may be back at the next renewal
                continue

    @timed_guard("lease, per renewal", time.thread_time)
    def _keep(self) -> None:
        self.check()
        self._renew()

    def _renew(self) -> None:
        with self._writing:
            if self._owner is None:
                return
            now, renewals = round(time.time(), 3), self._owner.renewals + 1
            self._owner = replace(self._owner, renewed=now, renewals=renewals)
            try:
                self._write(self._owner)
            except OSError as error:
                if not isinstance(error, FileNotFoundError) and error.errno != ESTALE:
                    raise
                # someone has removed the file, and nobody has taken the lease
                self._prepare()
                self._create(self._number, self._owner)

    # The files, which another kind of storage replaces

    def _prepare(self) -> None:
        if self._folder.is_symlink() or self._folder.is_file():
            self._folder.unlink()
        self._folder.mkdir(parents=True, exist_ok=True)

    def _names(self) -> list[str]:
        return os.listdir(self._folder) if self._folder.is_dir() else []

    def _read(self, name: str) -> bytes:
        return _read(self._folder / name)

    def _create(self, number: int, owner: Owner) -> bool:
        """Create the file of a number; return False if it exists already."""
        return _create(self._folder, number, encode_owner(owner), owner.token)

    def _write(self, owner: Owner) -> None:
        _write(self._folder / lease_name(self._number), encode_owner(owner))

    def _remove(self, names: Iterable[str]) -> None:
        _remove(self._folder, names)


def _is_released(owner: Owner) -> bool:
    return owner.released or owner.token in _given_back


def newest_lease(names: Iterable[str]) -> str | None:
    """Return which of the files in a ``.lock`` folder is the lease, None if there is none."""
    number = _highest(names)
    return lease_name(number) if number else None


def parse_owner(text: bytes) -> Owner | None:
    """Return the owner that a lease names, None if it names none."""
    try:
        fields = json.loads(text)
        owner = Owner(**fields)
    except (ValueError, TypeError, RecursionError):  # torn by a power failure, or not ours
        return None
    kinds = ((owner.token, str), (owner.host, str), (owner.pid, int), (owner.released, bool))
    numbers = (owner.since, owner.renewed, owner.renewals)
    is_valid = all(type(value) is kind for value, kind in kinds) and owner.pid > 0
    is_valid = is_valid and all(type(n) in (int, float) and 0 <= n < 1e12 for n in numbers)
    return replace(owner, host=owner.host[:200]) if is_valid else None


def _in_use(folder: str, owner: Owner) -> str:
    since, renewed = (
        f"{datetime.fromtimestamp(when, UTC):%Y-%m-%d %H:%M:%S}"
        for when in (owner.since, owner.renewed)
    )
    return (
        f"'{folder}' is in use by {owner} since {since} UTC, last renewed {renewed}: wait until it "
        "has ended, stop it, or use another folder"
    )


def _warn(message: str) -> None:
    from stoker.core.log import get_logger  # imports torch

    get_logger().warning(message)


def lease_name(number: int) -> str:
    """Return the name of the file of a lease."""
    return f"{number:08}.json"


def _highest(names: Iterable[str]) -> int:
    stems = [name.removesuffix(".json") for name in names if name.endswith(".json")]
    found = [int(s) for s in stems if s.isascii() and s.isdigit() and len(s) == len("00000000")]
    return max((number for number in found if number < _LARGEST_NUMBER), default=0)


def encode_owner(owner: Owner) -> bytes:
    """Return the contents of the file of a lease."""
    return json.dumps(asdict(owner)).encode().ljust(_LENGTH)


def _read(path: Path) -> bytes:
    with suppress(OSError), closing_descriptor(open_regular(path)) as file:
        return os.pread(file, 4 * _LENGTH, 0)
    return b""  # removed by the next owner, or a link


def _create(folder: Path, number: int, text: bytes, token: str) -> bool:
    """Create a file with its contents at once; return False if it exists already."""
    temporary, path = folder / f".{token}", folder / lease_name(number)
    try:
        _write(temporary, text, os.O_CREAT | os.O_EXCL)
        try:
            os.link(temporary, path)
        except FileExistsError:
            return temporary.stat().st_nlink == 2  # over NFS, a repeated request may say so
        except OSError as error:
            if error.errno not in _NO_HARD_LINKS:
                raise
            _write(path, text, os.O_CREAT | os.O_EXCL)
        return True
    except FileExistsError:
        return False
    except FileNotFoundError:
        return False  # the process that was faster has removed the temporary file
    finally:
        _remove(folder, [temporary.name])


def _write(path: Path, text: bytes, mode: int = 0) -> None:
    mode |= os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC
    with closing_descriptor(os.open(path, mode, 0o666)) as file:
        os.pwrite(file, text, 0)


def _remove(folder: Path, names: Iterable[str]) -> None:
    for name in names:
        with suppress(OSError):
            os.unlink(folder / name)


@cache
def _kernel() -> str | None:
    """Return what two processes share that see each other's ids: one boot, one pid namespace."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}/{os.stat('/proc/self/ns/pid').st_ino}"
    except OSError:
        return None
