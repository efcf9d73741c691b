"""`Membership`: this process as a member of an elastic job, whose processes come and go.

The launcher keeps a store that outlives every process. In it, generation n of the job is the list
of its members. Whoever learns of a change (the launcher of a death, the members of a process that
joins, a member that it has to leave) proposes generation n + 1, and the first proposal counts.

Collectives are numbered, because all members execute the same ones in the same order. When a member
is lost, the others form the group of the next generation and compare numbers. Since nobody finishes
a collective that another has not begun, they are at most one apart: who is behind gets the result
from who is ahead, and otherwise all repeat the collective, or the work that led to it.
"""

import logging
import os
import pickle
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from itertools import count
from multiprocessing import AuthenticationError
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

import torch
import torch.distributed

from stoker.core.errors import Preempted, StokerError

c10d: Any = torch.distributed  # torch's types leave out half of what is used here
T = TypeVar("T")
_log = logging.getLogger("stoker")  # `core.log` needs the rank, and so this module

MEMBER, JOINS, SECRET = "STOKER_MEMBER", "STOKER_JOINS", "STOKER_ELASTIC_SECRET"
"""The environment of a member: its number, whether it joins later, and the key of connections."""

_CONNECT = timedelta(seconds=20)
_OPERATION = timedelta(days=7)
_POLL = 0.004
_WAIT = 0.02
_UNNOTICED = 2.0  # seconds after which a broken connection without a death is repaired


class Regrouped(Exception):  # noqa: N818
    """The members have changed: repeat the work since the last collective."""


@dataclass(frozen=True)
class Change:
    """A change of members, for the record of a run.

    Attributes:
        left: the members that were lost.
        joined: the members that were added.
        members: the members now.
        seconds: how long this member needed to form the new group, since it noticed.
    """

    left: list[int]
    joined: list[int]
    members: list[int]
    seconds: float


class JobStore:
    """The store of an elastic job, as the launcher and the members use it."""

    def __init__(self, store: Any) -> None:
        self.store = store

    def members(self, generation: int) -> list[int] | None:
        """Return the members of a generation; None if there is no such generation yet."""
        key = f"generation/{generation}"
        if not self.store.check([key]):
            return None
        return [int(one) for one in self.store.get(key).decode().split(",") if one]

    def propose(self, generation: int, members: Sequence[int]) -> list[int]:
        """Propose the members of a generation; return those of the first proposal."""
        wanted = ",".join(map(str, members))
        found = self.store.compare_set(f"generation/{generation}", "", wanted or ",")
        return [int(one) for one in found.decode().split(",") if one]

    def newest(self, generation: int) -> tuple[int, list[int]]:
        """Return the newest generation and its members, from one that exists on."""
        members = self.members(generation)
        assert members is not None
        while (later := self.members(generation + 1)) is not None:
            generation, members = generation + 1, later
        return generation, members

    def has(self, key: str) -> bool:
        """Return whether a key is set."""
        return bool(self.store.check([key]))


@dataclass(frozen=True)
class _CaughtUp:
    result: tuple[Any] | None


class Membership:
    """This process as a member of an elastic job.

    Args:
        address: host and port of the launcher's store.
        member: the number of this process, which no other one ever has.
        joins: whether it joins a job that trains already; then it has no state yet.

    Attributes:
        generation, members: the group that this process belongs to.
        joining: whether this process works alone until it has received the state of the run.
        finished: the number of collectives finished.
        requested: how many processes have requested to join so far, as agreed.
        changes: the changes of members so far, oldest first.
        on_join: called on all members when one has joined, that one included.
        left: whether this process has left the job, which others continue.
    """

    def __init__(self, address: tuple[str, int], member: int, *, joins: bool) -> None:
        self._address = address
        self.jobs = JobStore(self._client())
        self.member, self.joining = member, joins
        self.generation, self.members = 0, [member]
        self.finished = 0
        self._last: Any = None  # the result of the last collective
        self.changes: list[Change] = []
        self.on_join: list[Callable[[], None]] = []
        self.left = False
        self._stay: Callable[[], None] | None = None  # if this process is to leave
        self._published: dict[str, int] = {}
        self._unit: int | None = None  # the number of collectives when the current work began
        self._running = False  # whether a collective is in progress, which may use others
        self._fit = 0
        self.requested = self._admitted = 0
        self._sockets: list[socket.socket] = []
        self._lock = threading.Lock()
        self._newest = 0
        threading.Thread(target=self._watch, daemon=True, name="stoker-members").start()
        if not joins:
            self._form(since=time.monotonic())

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> "Membership | None":
        """Return the membership that the launcher has described; None if it has not."""
        if MEMBER not in environment:
            return None
        address = environment["MASTER_ADDR"], int(environment["MASTER_PORT"])
        return cls(address, int(environment[MEMBER]), joins=JOINS in environment)

    def _client(self) -> Any:
        return c10d.TCPStore(*self._address, is_master=False, wait_for_workers=False)

    @property
    def rank(self) -> int:
        """The place of this process among the members; one that joins or has left is not first."""
        return 1 if not self._shares else self.members.index(self.member)

    @property
    def inherited(self) -> bool:
        """Whether this process is the first because those before it are gone."""
        return self.rank == 0 and bool(self.changes or self.member)

    # Collectives

    def run(self, collective: Callable[[], T]) -> T:
        """Execute a collective, however often members are lost meanwhile, and return its result."""
        if self._running:
            return collective()
        while True:
            self._leave_if_wanted()
            self._running = True
            try:
                result = collective()
                break
            except Exception as error:
                found = self._recover(error)
                if found is not None:
                    result = found[0]
                    break
                if self._unit is not None:
                    raise Regrouped from error
            finally:
                self._running = False
        self.finished, self._last = self.finished + 1, result
        return result

    def complete(self, work: Callable[[], T], prepare: Callable[[], None]) -> T:
        """Do work that ends with a collective; repeat it if a member is lost meanwhile.

        Args:
            work: what each member does for its own logical ranks. Nobody finishes it unless all do.
            prepare: brings this process back to where the work began, with the new members.
        """
        self._leave_if_wanted()
        began = self.finished
        while True:
            self._unit = began
            try:
                return work()
            except Regrouped:
                pass
            except Exception as error:
                self._recover(error)
            finally:
                self._unit = None
            self.finished = began
            prepare()

    def _recover(self, error: Exception) -> tuple[Any] | None:
        """Form the next group after an error of a lost connection; raise any other error.

        Returns:
            The result of the collective that failed here, if another member has it, in a tuple.
        """
        if self._newest <= self.generation and not _is_lost_connection(error):
            raise error
        since = time.monotonic()
        self._close_group()
        self._await_generation(since)
        return self._form(since)

    def _await_generation(self, since: float) -> None:
        """Wait for a generation after the current one; if nobody has died, start one."""
        while self._newest <= self.generation:
            if time.monotonic() - since > _UNNOTICED:
                self.jobs.propose(self.generation + 1, self.members)
            time.sleep(_POLL)

    def publish(self, name: str, agree: Callable[[], T]) -> T:
        """Return what the members agree on; a process that joins later reads what they published.

        Args:
            name: what it is; the n-th call with a name is about the n-th value.
            agree: returns the value on the members.
        """
        number = self._published[name] = self._published.get(name, 0) + 1
        key, store = f"published/{name}/{number}", self.jobs.store
        if self.joining:
            store.wait([key], _OPERATION)
            found: T = pickle.loads(store.get(key))
            return found
        value = agree()
        store.set(key, pickle.dumps(value))
        return value

    # Groups

    def _watch(self) -> None:
        """Close the connections of the group as soon as there is a newer generation.

        Closing its own connections is what ends a wait in gloo: `abort` of a group does not, and
        a member that waits for another survivor would not notice the death of a third one.
        """
        with suppress(Exception):  # the launcher has gone
            store = self._client()
            for generation in count(1):
                store.wait([f"generation/{generation}"], _OPERATION)
                with self._lock:
                    self._newest = max(self._newest, generation)
                    if self._newest > self.generation:
                        self._shut()

    def _shut(self) -> None:
        for one in self._sockets:
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()
        self._sockets = []

    def _close_group(self) -> None:
        with self._lock:
            self._shut()
        if c10d.is_initialized():
            c10d.destroy_process_group()

    def _form(self, since: float) -> tuple[Any] | None:
        """Form the group of the newest generation.

        Returns:
            The result of the current collective, if another member has it, in a tuple.
        """
        before, result = self.members, None
        while True:
            generation, members = self.jobs.newest(self.generation)
            if self.member not in members:
                raise StokerError(
                    f"process {os.getpid()} is no member of the job any more: it did not respond, "
                    "and the others continue without it"
                )
            states = self._gather(generation, members)
            if states is not None:
                if not self._connect(generation, members):
                    self.jobs.propose(generation + 1, members)
                elif (found := self._catch_up(generation, members, states)) is not None:
                    result = found.result
                    break
            self._close_group()
        self.members = members
        gone, new = _difference(before, members), _difference(members, before)
        if generation and (gone or new):
            seconds = time.monotonic() - since
            self.changes.append(Change(gone, new, members, round(seconds, 3)))
        return result

    def _gather(self, generation: int, members: Sequence[int]) -> dict[int, list[int]] | None:
        """Return how far each member is; None if there is a newer generation before all say so.

        That is how many collectives it has finished, and which one it is in now.
        """
        store = self.jobs.store
        begun = self.finished if self._unit is None else self._unit
        store.set(f"ready/{generation}/{self.member}", f"{begun},{self.finished}")
        keys = [f"ready/{generation}/{member}" for member in members]
        while not store.check(keys):
            if self.jobs.members(generation + 1) is not None:
                return None
            time.sleep(_POLL)
        found = store.multi_get(keys)
        rows = [[int(number) for number in one.decode().split(",")] for one in found]
        return dict(zip(members, rows, strict=True))

    def _connect(self, generation: int, members: Sequence[int]) -> bool:
        """Connect to the other members; return whether that succeeded."""
        sockets: list[socket.socket] = []
        if len(members) > 1:
            before = {*os.listdir("/proc/self/fd")}
            try:
                c10d.init_process_group(
                    "gloo",
                    store=c10d.PrefixStore(f"group/{generation}", self.jobs.store),
                    rank=members.index(self.member),
                    world_size=len(members),
                    timeout=_CONNECT,
                )
            except Exception as error:
                _log.debug(f"the group of generation {generation} was not formed: {error}")
                return False
            c10d.group.WORLD._get_backend(torch.device("cpu"))._set_default_timeout(_OPERATION)
            sockets = _connections({*os.listdir("/proc/self/fd")} - before)
        with self._lock:
            self.generation, self._sockets = generation, sockets
            if self._newest > generation:
                self._shut()
            self._newest = max(self._newest, generation)
        return True

    def _catch_up(
        self, generation: int, members: Sequence[int], states: Mapping[int, Sequence[int]]
    ) -> "_CaughtUp | None":
        """Get the result of the current collective if others have it, or give it to them.

        Returns:
            The result; None if there is a newer generation before it has arrived.
        """
        furthest = max(begun for begun, _ in states.values())
        ahead = [member for member in members if states[member][0] == furthest]
        behind = [member for member in members if states[member][1] < furthest]
        key, store = f"result/{generation}", self.jobs.store
        if behind and self.member == ahead[0]:
            store.set(key, pickle.dumps(self._last))
        if self.member not in behind:
            return _CaughtUp(None)
        assert self.finished == furthest - 1
        while not store.check([key]):
            if self.jobs.members(generation + 1) is not None:
                return None
            time.sleep(_POLL)
        return _CaughtUp((pickle.loads(store.get(key)),))

    # Leaving and joining

    def leave(self, stay: Callable[[], None]) -> None:
        """Leave before the next collective, if others can continue; otherwise call ``stay``."""
        self._stay = stay

    def _leave_if_wanted(self) -> None:
        """Leave the job if this process has to and others can continue it."""
        while self._stay is not None:
            generation, members = self.jobs.newest(self.generation)
            others = [member for member in members if member != self.member]
            if not others or self.jobs.has("closing"):
                stay, self._stay = self._stay, None
                stay()
            elif self.jobs.propose(generation + 1, others) == others:
                self.left, self._stay = True, None
                self._close_group()
                raise Preempted

    def begin_fit(self) -> bool:
        """Begin the next fit of the script; return whether this process has to join it first."""
        self._fit += 1
        if not self.joining and self.rank == 0:
            self.jobs.store.set("fit", str(self._fit))
        return self.joining

    def waiting_to_join(self) -> int:
        """Return how many processes have requested to join so far, as far as rank 0 knows."""
        return int(self.jobs.store.add("joins", 0)) if self._shares and self.rank == 0 else 0

    @property
    def _shares(self) -> bool:
        return not (self.joining or self.left)

    def admit(self, capture: Callable[[], bytes]) -> None:
        """Let those join that the members know of; all call it between two steps.

        Args:
            capture: returns the state of the run; called on the first member.
        """
        requested, first = self.requested, self._admitted
        if requested <= first:
            return
        store, self._admitted = self.jobs.store, requested

        def send() -> list[int]:
            offers = [store.get(f"join/{number}").decode() for number in range(first, requested)]
            sent = self._send_state(offers, capture, requested) if self.rank == 0 else []
            found: list[list[int]] = [sent]
            if len(self.members) > 1:
                found = [[] for _ in self.members]
                c10d.all_gather_object(found, sent)
            return found[0]

        joined = self.run(send)
        self._regroup_with(joined)
        if joined:
            self._notify()

    def _regroup_with(self, joined: Sequence[int]) -> None:
        """Continue with the members that have joined, as far as they are still there."""
        since = time.monotonic()
        while True:
            missing = [m for m in joined if m not in self.members and not self._is_dead(m)]
            if not missing:
                return
            generation, members = self.jobs.newest(self.generation)
            if {*missing} - {*members}:
                self.jobs.propose(generation + 1, [*members, *_difference(missing, members)])
            self._close_group()
            self._form(since)

    def _is_dead(self, member: int) -> bool:
        return self.jobs.has(f"dead/{member}")

    def _send_state(
        self, offers: Sequence[str], capture: Callable[[], bytes], requested: int
    ) -> list[int]:
        """Send the state to those that wait for it; return who has received it."""
        from multiprocessing.connection import Client

        received, state = [], b""
        for offer in offers:
            member, port, fit = map(int, offer.split(","))
            if self._is_dead(member) or member in self.members or fit != self._fit:
                continue
            state = state or capture()
            try:
                with Client((self._address[0], port), authkey=_secret()) as connection:
                    connection.send_bytes(
                        pickle.dumps((self.finished + 1, requested, self.generation))
                    )
                    connection.send_bytes(state)
                    if connection.poll(60.0) and connection.recv_bytes() == b"received":
                        received.append(member)
            except (OSError, EOFError) as error:
                _log.debug(f"member {member} did not receive the state: {error}")
        return received

    def join(self) -> bytes | None:
        """Ask the members to let this process join, and return the state of the run.

        It returns when this process is a member. Until `begin` is called, it works alone. It
        returns None if the members are in a later fit of the script.
        """
        from multiprocessing.connection import Listener

        received: SimpleQueue[tuple[Any, bytes]] = SimpleQueue()
        head, state = (0, 0, 0), b""
        with Listener((self._address[0], 0), authkey=_secret()) as listener:
            threading.Thread(target=_receive, args=(listener, received), daemon=True).start()
            number = int(self.jobs.store.add("joins", 1)) - 1
            offer = f"{self.member},{listener.address[1]},{self._fit}"
            self.jobs.store.set(f"join/{number}", offer)
            while not state or self.member not in self.jobs.newest(head[2])[1]:
                if int(self.jobs.store.get("fit")) != self._fit:
                    return None
                with suppress(Empty):
                    head, state = received.get(timeout=_WAIT)
        self.finished, self.requested, self.generation = head
        self._admitted = self.requested
        self._form(since=time.monotonic())
        return state

    def begin(self) -> None:
        """Take part in collectives from now on, after the state was restored."""
        if self.joining:
            self.joining = False
            self._notify()

    def _notify(self) -> None:
        for call in self.on_join:
            call()


def _difference(some: Sequence[int], others: Sequence[int]) -> list[int]:
    return [one for one in some if one not in others]


def _secret() -> bytes:
    return os.environ[SECRET].encode()


def _receive(listener: Any, received: "SimpleQueue[tuple[Any, bytes]]") -> None:
    """Receive the state of the run, from each member that sends it: the first may have died."""
    while True:
        try:
            with listener.accept() as connection:
                head, state = pickle.loads(connection.recv_bytes()), connection.recv_bytes()
                connection.send_bytes(b"received")
        except AuthenticationError:
            continue
        except (OSError, EOFError):
            if listener._listener is None:  # it was closed
                return
            continue
        received.put((head, state))


def _is_lost_connection(error: BaseException | None) -> bool:
    while error is not None:
        text = str(error)
        if isinstance(error, c10d.DistError | ConnectionError) or "peer" in text or "gloo/" in text:
            return True
        error = error.__cause__ or error.__context__
    return False


def _connections(descriptors: set[str]) -> list[socket.socket]:
    """Return duplicates of those descriptors that are connections."""
    found = []
    for descriptor in descriptors:
        with suppress(OSError):
            one = socket.socket(fileno=os.dup(int(descriptor)))
            try:
                one.getpeername()
            except OSError:
                one.close()
            else:
                found.append(one)
    return found
