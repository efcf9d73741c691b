"""`MemberGroup`: the process group of one generation, in which no wait outlasts the generation."""

import json
import logging
import os
import pickle
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
_LOOK = timedelta(seconds=0.25)  # between two looks whether an operation can still end
_LAST = 0.5  # seconds for an operation to end after gloo has closed the connections


class MemberGroup:
    """The connections between the members of one generation.

    Closing its own connections is what ends a wait in gloo: `abort` of a group does not, and
    a member that waits for another survivor would not notice the death of a third one.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sockets: list[socket.socket] = []
        self._inodes: set[str] = set()
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
            members = [one for one in new if one.peer in ends]
            self._sockets = [one.socket for one in members]
            self._inodes = {one.inode for one in members}
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
        """Leave the group. It is freed in the background, since that waits for its operations."""
        self.shut(self._generation + 1)
        if c10d.is_initialized():
            last = [c10d.group.WORLD]
            c10d.destroy_process_group()
            threading.Thread(target=last.clear, daemon=True, name="stoker-old-group").start()

    def wait(self, work: Any) -> None:
        """Wait for an operation of the group, as long as it can end.

        An operation whose data gloo was sending when the connection was lost never ends: gloo
        reports it only to those that have not begun to send, and to those that receive.

        Raises:
            RuntimeError: it failed, or gloo has closed the connections and it does not end.
        """
        closed = float("inf")
        while not work.is_completed():
            try:
                work.wait(_LOOK)
            except RuntimeError:
                closed = min(closed, time.monotonic()) if self._is_closed() else closed
                if time.monotonic() - closed > _LAST and not work.is_completed():
                    raise RuntimeError("gloo/ does not end an operation") from None
        work.wait()

    def _is_closed(self) -> bool:
        """Return whether gloo has closed all connections to the other members."""
        with self._lock:
            is_shut = not self._sockets
        return is_shut and self._inodes.isdisjoint(inode for _, inode in _open_sockets())


def gather_objects(value: Any, wait: Callable[[Any], None]) -> list[Any]:
    """Return the value of each member, by rank.

    Args:
        value: that of this process.
        wait: waits for an operation.
    """
    data = torch.frombuffer(bytearray(pickle.dumps(value)), dtype=torch.uint8)
    world_size, rank = c10d.get_world_size(), c10d.get_rank()
    sizes = torch.zeros(world_size, dtype=torch.int64)
    sizes[rank] = len(data)
    wait(c10d.all_reduce(sizes, async_op=True))
    padded = torch.zeros(int(sizes.max()), dtype=torch.uint8)
    padded[: len(data)] = data
    found = [torch.empty_like(padded) for _ in range(world_size)]
    wait(c10d.all_gather(found, padded, async_op=True))
    pairs = zip(found, sizes.tolist(), strict=True)
    return [pickle.loads(one[:size].numpy().tobytes()) for one, size in pairs]


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
    inode: str
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
                yield _Connection(one, inode, _address(local), _address(peer))
            else:
                one.close()


def _address(name: Any) -> tuple[str, int]:
    return name[0].removeprefix("::ffff:"), name[1]
