"""`MemberGroup`: the process group of one generation, in which no wait outlasts the generation."""

import json
import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import timedelta
from typing import Any, NamedTuple

import torch
import torch.distributed

c10d: Any = torch.distributed  # torch's types leave out half of what is used here
_log = logging.getLogger("stoker")  # `core.log` needs the rank, and so this module

POLL = 0.004
"""Seconds between two looks at the store while the members form a group."""
_OPERATION = timedelta(days=7)  # `shut` ends an operation, not a timeout


class MemberGroup:
    """The connections between the members of one generation.

    Closing its own connections is what ends a wait in gloo: `abort` of a group does not, and
    a member that waits for another survivor would not notice the death of a third one.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sockets: list[socket.socket] = []
        self._generation = 0

    def connect(
        self,
        store: Any,
        generation: int,
        rank: int,
        world_size: int,
        seconds: float,
        is_over: Callable[[], bool],
    ) -> bool:
        """Connect to the other members; return whether that succeeded.

        Args:
            store: the store of the job.
            generation: whose group it is.
            rank: the place of this process among them.
            world_size: the number of members.
            seconds: the time for it. A member that does not come in time makes it fail.
            is_over: whether there is a newer generation.
        """
        if world_size == 1:
            return True
        store = c10d.PrefixStore(f"group/{generation}", store)
        before = {inode for _, inode in _open_sockets()}
        try:
            c10d.init_process_group(
                "gloo",
                store=store,
                rank=rank,
                world_size=world_size,
                timeout=timedelta(seconds=seconds),
            )
        except Exception as error:
            _log.debug(f"the group was not formed: {error}")
            return False
        c10d.group.WORLD._get_backend(torch.device("cpu"))._set_default_timeout(_OPERATION)
        new = [*_connections(before)]
        store.set(f"ends/{rank}", json.dumps([one.local for one in new]))
        keys = [f"ends/{other}" for other in range(world_size) if other != rank]
        deadline = time.monotonic() + seconds
        while not store.check(keys):
            if is_over() or time.monotonic() > deadline:
                return False
            time.sleep(POLL)
        ends = {tuple(end) for text in store.multi_get(keys) for end in json.loads(text)}
        with self._lock:
            self._generation = generation
            self._sockets = [one.socket for one in new if one.peer in ends]
        return len(self._sockets) >= world_size - 1

    def shut(self, newest: int) -> None:
        """End all waits in the group of a generation before the newest; any thread may call it."""
        with self._lock:
            if self._generation >= newest:
                return
            for one in self._sockets:
                with suppress(OSError):
                    one.shutdown(socket.SHUT_RDWR)
                one.close()
            self._sockets = []

    def close(self) -> None:
        """Leave the group."""
        self.shut(self._generation + 1)
        if c10d.is_initialized():
            c10d.destroy_process_group()


def is_lost_connection(error: BaseException | None) -> bool:
    """Return whether an error is due to a lost connection to another member.

    Of gloo it is a plain RuntimeError. A `ConnectionError` is one of the training's own code.
    """
    while error is not None:
        is_of_gloo = "gloo/" in str(error) or "peer" in str(error)
        if isinstance(error, c10d.DistError) or (type(error) is RuntimeError and is_of_gloo):
            return True
        error = error.__cause__ or error.__context__
    return False


def _open_sockets() -> Iterator[tuple[int, str]]:
    """Yield the descriptor and the inode of each open socket, of which the inode is unique."""
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            target = os.readlink(f"/proc/self/fd/{name}")
            if target.startswith("socket:"):
                yield int(name), target


class _Connection(NamedTuple):
    socket: socket.socket
    local: tuple[str, int]
    peer: tuple[str, int]


def _connections(before: set[str]) -> Iterator[_Connection]:
    """Yield a duplicate of each connection by TCP that was not there before."""
    for number, inode in _open_sockets():
        if inode in before:
            continue
        with suppress(OSError):
            one = socket.socket(fileno=os.dup(number))
            try:
                local, peer = one.getsockname(), one.getpeername()
            except OSError:
                local = peer = ""
            if isinstance(peer, tuple):
                yield _Connection(one, _address(local), _address(peer))
            else:
                one.close()


def _address(name: Any) -> tuple[str, int]:
    return name[0].removeprefix("::ffff:"), name[1]
