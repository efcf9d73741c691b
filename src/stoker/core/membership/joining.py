"""How the state of a run gets from a member to a process that joins."""

import logging
import os
import pickle
import threading
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client, Listener
from queue import Empty, SimpleQueue
from types import TracebackType
from typing import NamedTuple, Self

from stoker.core.membership.job_store import SECRET

_log = logging.getLogger("stoker")  # `core.log` needs the rank, and so this module
_ANSWER = 60.0


class Offer(NamedTuple):
    """Where a process that joins receives the state, and in which fit of its script it is."""

    member: int
    port: int
    fit: int

    def __str__(self) -> str:
        return ",".join(map(str, self))

    @classmethod
    def of(cls, text: str) -> "Offer":
        """Return the offer with this text."""
        return cls(*map(int, text.split(",")))


class Head(NamedTuple):
    """Where the members are: collectives, requests to join, and the generation before the join."""

    finished: int
    requested: int
    generation: int


def send_state(host: str, offer: Offer, head: Head, state: bytes) -> bool:
    """Send the state to a process that joins; return whether it has received it."""
    try:
        with Client((host, offer.port), authkey=_secret()) as connection:
            connection.send_bytes(pickle.dumps(tuple(head)))
            connection.send_bytes(state)
            return connection.poll(_ANSWER) and connection.recv_bytes() == b"received"
    except (OSError, EOFError, AuthenticationError) as error:
        _log.debug(f"member {offer.member} did not receive the state: {error}")
        return False


class StateReceiver:
    """Receives the state of the run, from each member that sends it: the first may have died."""

    def __init__(self, host: str) -> None:
        self._listener = Listener((host, 0), authkey=_secret())
        self._closed = False
        self._received: SimpleQueue[tuple[Head, bytes]] = SimpleQueue()
        threading.Thread(target=self._receive, daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._closed = True
        self._listener.close()

    @property
    def port(self) -> int:
        """Where it listens."""
        return int(self._listener.address[1])

    def next(self, seconds: float) -> tuple[Head, bytes] | None:
        """Return what has arrived, after at most so many seconds; None if nothing has."""
        try:
            return self._received.get(timeout=seconds)
        except Empty:
            return None

    def _receive(self) -> None:
        while not self._closed:
            try:
                with self._listener.accept() as connection:
                    head, state = pickle.loads(connection.recv_bytes()), connection.recv_bytes()
                    connection.send_bytes(b"received")
            except (OSError, EOFError, AuthenticationError):
                continue
            self._received.put((Head(*head), state))


def _secret() -> bytes:
    return os.environ[SECRET].encode()
