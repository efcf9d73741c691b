"""What each rank reports about itself, through the store of the process group."""

import json
import os
import signal
import socket
import threading
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from time import monotonic, sleep
from typing import Any, Literal, NamedTuple

import torch.distributed

from stoker.core.process import is_pending, process_stat

c10d: Any = torch.distributed  # torch's types leave out half of what is used here

HUNG = 75
"""The exit code of a process that hung."""

DUMP = getattr(signal, "SIGUSR2", None)
"""The signal that makes a rank print its stacks, unless the user handles it."""


@dataclass(frozen=True)
class RankStatus:
    """One report of a rank."""

    number: int
    """Different in each report."""
    where: str
    """What the rank does, such as "in the forward pass of step 3"."""
    waiting: bool
    """Whether it is inside a call of torch.distributed."""
    collectives: dict[str, int]
    """The collectives it has started, by process group."""
    left: Literal["", "ended", "failed"]
    """Whether the rank has left its run, and how."""
    prints_stacks: bool
    """Whether it prints its stacks on `DUMP`."""
    host: str
    pid: int
    started: str
    """When the process started, which differs for a later one with the same ``pid``."""

    @property
    def process(self) -> str:
        """The process, for messages."""
        return f"pid {self.pid} on {self.host}"

    @property
    def state(self) -> str | None:
        """Its state in /proc, such as "T" for stopped; "" if it is gone, None if unknown."""
        if self.host != socket.gethostname() or not Path("/proc/self/stat").exists():
            return None
        state, started = process_stat(self.pid)
        return state if started == self.started else ""

    @property
    def gone(self) -> bool:
        """Whether the process has exited, as far as known."""
        return self.state in ("", "Z", "X")

    def end(self) -> bool:
        """Let a process of this machine print its stacks, kill it, and return whether it is gone.

        A stopped process is continued for a moment, long enough on a busy machine, and prints the
        stacks that it had.
        """
        with suppress(ProcessLookupError, PermissionError):
            if self.prints_stacks and DUMP is not None:
                os.kill(self.pid, DUMP)
                os.kill(self.pid, signal.SIGCONT)
                deadline = monotonic() + 10.0
                while is_pending(self.pid, DUMP) and monotonic() < deadline:
                    sleep(0.02)
                sleep(1.5)
            os.kill(self.pid, signal.SIGKILL)
        deadline = monotonic() + 5.0
        while not self.gone and monotonic() < deadline:
            sleep(0.02)
        return self.gone


def collective_counts() -> dict[str, int]:
    """Return how many collectives this rank has started in each process group."""
    counts: dict[str, int] = {}
    world = c10d.distributed_c10d._world
    for group, name in list(world.pg_names.items()):
        with suppress(RuntimeError):  # some backends do not count
            counts[name] = group._get_sequence_number_for_group()
    return counts


class LastStatus(NamedTuple):
    """The last status of another rank, since when it is the last, and when it was read."""

    status: RankStatus
    since: float
    read: float

    @property
    def silence(self) -> float:
        """Seconds without a new status."""
        return self.read - self.since


class StatusExchange:
    """Writes the status of this rank and reads those of others, on a thread of its own.

    A store whose host does not answer blocks for good, so nobody waits for this thread.

    Attributes:
        own: the status to write.
        wanted: the ranks to read.
        seen: what was read, by rank.
        answered: when the store answered last.
        closed: whether the thread has ended, for example because the store has gone.
    """

    def __init__(self, interval: float) -> None:
        own_store = (
            c10d.distributed_c10d._get_default_store().clone()
        )  # has a connection of its own
        self._store = c10d.PrefixStore("stoker/rank-status", own_store)
        self._interval, self._done = interval, False
        self._wake, self._read = threading.Event(), threading.Event()
        self.rank, self.world_size = c10d.get_rank(), c10d.get_world_size()
        self.own: RankStatus | None = None
        self.wanted: set[int] = set()
        self.seen: dict[int, LastStatus] = {}
        self.answered = monotonic()
        self.closed = False
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._wake.set()
        self._thread.start()

    def stop(self) -> None:
        """Write the last status and end the thread."""
        self._done = True
        self._wake.set()
        self._thread.join(1.0)

    def everyone(self, timeout: float = 1.0) -> dict[int, LastStatus]:
        """Read all ranks once more, unless that takes too long; return what is known."""
        self.wanted = set(range(self.world_size)) - {self.rank}
        self._read.clear()
        self._wake.set()
        self._read.wait(timeout)
        return self.seen

    def _run(self) -> None:
        while True:
            self._wake.wait(self._interval)
            self._wake.clear()
            if self.closed:
                return
            self.closed = self._done
            try:
                if self.own is not None:
                    self._store.set(str(self.rank), json.dumps(asdict(self.own)))
                for rank in tuple(self.wanted):
                    self._fetch(rank)
            except RuntimeError:
                self.closed = True
            self.answered = monotonic()
            self._read.set()

    def _fetch(self, rank: int) -> None:
        if not self._store.check([str(rank)]):
            return
        status, now = RankStatus(**json.loads(self._store.get(str(rank)))), monotonic()
        last = self.seen.get(rank)
        since = now
        if last is not None and last.status.number == status.number:
            overslept = now - last.read > 10 * self._interval  # this process may have been stopped
            since = now if overslept else last.since
        self.seen[rank] = LastStatus(status, since, now)
