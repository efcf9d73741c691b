"""`Membership`: this process as a member of an elastic job."""

import os
import pickle
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import count
from typing import Any, TypeVar

import torch.distributed

from stoker.core.errors import Preempted, StokerError
from stoker.core.membership.group import (
    POLL,
    MemberGroup,
    gather_objects,
    is_lost_connection,
)
from stoker.core.membership.job_store import JOINS, MEMBER, JobStore, Progress
from stoker.core.membership.joining import Head, Offer, StateReceiver, send_state

c10d: Any = torch.distributed  # torch's types leave out half of what is used here
T = TypeVar("T")

_CONNECT = 5.0  # seconds to form a group, twice as many after each failure
_MOST_FAILURES = 6
_WATCH = 0.05
_REPORT = 1.0
_WAIT = 0.02
_UNNOTICED = 2.0  # seconds after which a broken connection without a death is repaired
_MOST_REPAIRS = 3  # in a row, of the same work


class Regrouped(Exception):  # noqa: N818
    """The members have changed: repeat the work since the last collective."""


@dataclass(frozen=True)
class Change:
    """A change of members, for the record of a run.

    Attributes:
        generation: the number of the group that was formed.
        left: the members that were lost.
        joined: the members that were added.
        members: the members now.
        seconds: how long this member needed to form the new group, since it noticed.
        since: when the first of those that were lost exited, or else when this member noticed the
            change, in seconds since 1970.
    """

    generation: int
    left: list[int]
    joined: list[int]
    members: list[int]
    seconds: float
    since: float


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
        lost_seconds: what these changes have cost this process: work that was cut, and forming
            groups.
        on_join: called on all members when one has joined, that one included.
        left: whether this process has left the job, which others continue.
        waiting: whether this process waits for others.
        in_group: whether it is in an operation of its group, which ends with that group.
    """

    def __init__(self, address: tuple[str, int], member: int, *, joins: bool) -> None:
        self._address = address
        self.jobs = JobStore(self._client())
        self.member, self.joining = member, joins
        self.generation, self.members = 0, [member]
        self.finished = 0
        self._last: Any = None  # the result of the last collective
        self.changes: list[Change] = []
        self.lost_seconds = 0.0
        self.on_join: list[Callable[[], None]] = []
        self.left = self.waiting = self.in_group = False
        self._stay: Callable[[], None] | None = None  # if this process is to leave
        self._published: dict[str, int] = {}
        self._unit: int | None = None  # the number of collectives when the current work began
        self._repairs = 0
        self._running = False  # whether a collective is in progress, which may use others
        self._fit = 0
        self.requested = self._admitted = 0
        self._group = MemberGroup()
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
        return self.rank == 0 and self.member > 0

    # What the launcher knows, and how a wait ends

    def _watch(self) -> None:
        """End waits for others when there is a newer generation, and report progress."""
        reported = 0.0
        for number in count():
            with suppress(RuntimeError):  # a connection that fails is made again
                jobs = JobStore(self._client())
                while True:
                    later = self.generation + 1
                    if jobs.has(f"generation/{later}"):
                        self._group.shut(later)
                    if time.monotonic() - reported > _REPORT:
                        reported = time.monotonic()
                        waits = self.waiting, self.in_group
                        state = *waits, self.finished, self.generation
                        jobs.report(self.member, Progress(time.monotonic_ns(), *state))
                    time.sleep(_WATCH)
            time.sleep(_WATCH if number < 20 else _REPORT)

    @contextmanager
    def waits(self, *, waiting: bool = True, in_group: bool = False) -> Iterator[None]:
        """Within this context, this process waits for others, or works on its own.

        Args:
            waiting: whether it waits.
            in_group: whether it waits in an operation of its group, which ends with that group.
        """
        before = self.waiting, self.in_group
        self.waiting, self.in_group = waiting, in_group
        try:
            yield
        finally:
            self.waiting, self.in_group = before

    def wait_for(self, work: Any) -> None:
        """Wait for an operation of all members."""
        with self.waits(in_group=True):
            self._group.wait(work)

    def disconnect(self) -> None:
        """Close the connections to the other members."""
        self._group.close()

    @property
    def _is_over(self) -> bool:
        """Whether there is a newer generation than the current one."""
        return self.jobs.has(f"generation/{self.generation + 1}")

    # Collectives

    def run(self, collective: Callable[[], T]) -> T:
        """Execute a collective, however often members are lost meanwhile, and return its result."""
        if self._running:
            return collective()
        began = time.monotonic()
        while True:
            self._leave_if_wanted()
            self._running = True
            try:
                with self.waits(in_group=True):
                    result = collective()
                break
            except Exception as error:
                found = self._recover(error)
                if self._unit is None:
                    self._count_lost(began)
                if found is not None:
                    result = found[0]
                    break
                if self._unit is not None:
                    raise Regrouped from error
            finally:
                self._running = False
        self.finished, self._last = self.finished + 1, result
        if self._unit is None:
            self._repairs = 0
        return result

    def complete(self, work: Callable[[], T], prepare: Callable[[], None]) -> T:
        """Do work that ends with a collective; repeat it if a member is lost meanwhile.

        Args:
            work: what each member does for its own logical ranks. Nobody finishes it unless all do.
            prepare: brings this process back to where the work began, with the new members.
        """
        self._leave_if_wanted()
        first = self.finished
        while True:
            self._unit, began = first, time.monotonic()
            try:
                result = work()
            except Regrouped:
                pass
            except Exception as error:
                self._recover(error)
            else:
                self._repairs = 0
                return result
            finally:
                self._unit = None
            self.finished = first
            prepare()
            self._count_lost(began)

    def _count_lost(self, began: float) -> None:
        self.lost_seconds += time.monotonic() - began

    def _recover(self, error: Exception) -> tuple[Any] | None:
        """Form the next group after an error of a lost connection; raise any other error.

        Returns:
            The result of the collective that failed here, if another member has it, in a tuple.
        """
        if not is_lost_connection(error) and not self._is_over:
            raise error
        since = time.monotonic()
        with self.waits():
            self._group.close()
            while not self._is_over:
                if time.monotonic() - since > _UNNOTICED:  # nobody has died
                    self._repairs += 1
                    if self._repairs > _MOST_REPAIRS:
                        raise error
                    self.jobs.propose(self.generation + 1, self.members)
                time.sleep(POLL)
        return self._form(since)

    def publish(self, name: str, agree: Callable[[], T]) -> T:
        """Return what the members agree on; a process that joins later reads what they published.

        Args:
            name: what it is; the n-th call with a name is about the n-th value.
            agree: returns the value on the members.
        """
        number = self._published[name] = self._published.get(name, 0) + 1
        key = f"published/{name}/{number}"
        if self.joining:
            with self.waits():
                while not self.jobs.has(key):  # until the members have it, or the job ends
                    time.sleep(_WAIT)
            found: T = pickle.loads(self.jobs.store.get(key))
            return found
        value = agree()
        self.jobs.store.set(key, pickle.dumps(value))
        return value

    # Groups

    def _form(self, since: float) -> tuple[Any] | None:
        """Form the group of the newest generation.

        Returns:
            The result of the current collective, if another member has it, in a tuple.
        """
        caught_up, failures = None, 0
        with self.waits():
            while caught_up is None:
                self._group.close()
                members = self._newest_members()
                states = self._gather(members)
                if states is None:
                    continue
                if self._connect(members, _CONNECT * 2**failures):
                    caught_up = self._catch_up(members, states)
                elif not self._is_over:
                    failures += 1
                    _check_failures(failures)
                    self.jobs.propose(self.generation + 1, members)
        before = _difference(members, [self.member]) if self.joining else self.members
        self.members = members
        self._record(_difference(before, members), _difference(members, before), since)
        return caught_up.result

    def _newest_members(self) -> list[int]:
        self.generation, members = self.jobs.newest(self.generation)
        if self.member not in members:
            raise StokerError(
                f"process {os.getpid()} is no member of the job any more: it did not respond, "
                "and the others continue without it"
            )
        return members

    def _record(self, left: list[int], joined: list[int], since: float) -> None:
        if self.generation and (left or joined):
            seconds = time.monotonic() - since
            died = [when for member in left if (when := self.jobs.died_at(member)) is not None]
            began = min(died, default=time.time() - seconds)
            times = round(seconds, 3), round(began, 3)
            self.changes.append(Change(self.generation, left, joined, self.members, *times))

    def _gather(self, members: Sequence[int]) -> dict[int, list[int]] | None:
        """Return how far each member is; None if there is a newer generation before all say so.

        That is how many collectives it has finished, and which one it is in now.
        """
        store, generation = self.jobs.store, self.generation
        begun = self.finished if self._unit is None else self._unit
        store.set(f"ready/{generation}/{self.member}", f"{begun},{self.finished}")
        keys = [f"ready/{generation}/{member}" for member in members]
        while not store.check(keys):
            if self._is_over:
                return None
            time.sleep(POLL)
        found = store.multi_get(keys)
        rows = [[int(number) for number in one.decode().split(",")] for one in found]
        return dict(zip(members, rows, strict=True))

    def _connect(self, members: Sequence[int], seconds: float) -> bool:
        """Connect to the other members; return whether that succeeded."""
        return self._group.connect(
            self.jobs.store,
            self.generation,
            members.index(self.member),
            len(members),
            seconds,
            lambda: self._is_over,
        )

    def _catch_up(
        self, members: Sequence[int], states: Mapping[int, Sequence[int]]
    ) -> "_CaughtUp | None":
        """Get the result of the current collective if others have it, or give it to them.

        Returns:
            The result; None if there is a newer generation before it has arrived.
        """
        furthest = max(begun for begun, _ in states.values())
        ahead = [member for member in members if states[member][0] == furthest]
        behind = [member for member in members if states[member][1] < furthest]
        key, store = f"result/{self.generation}", self.jobs.store
        if behind and self.member == ahead[0]:
            store.set(key, pickle.dumps(self._last))
        if self.member not in behind:
            return _CaughtUp(None)
        assert self.finished == furthest - 1
        while not store.check([key]):
            if self._is_over:
                return None
            time.sleep(POLL)
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
                self._group.close()
                raise Preempted

    def begin_fit(self) -> bool:
        """Begin the next fit of the script; return whether this process has to join it first."""
        self._fit += 1
        if not self.joining and self.rank == 0:
            self.jobs.store.set("fit", str(self._fit))
        return self.joining

    def reachable(self) -> int:
        """Return how many processes there are: members, and those that have requested to join."""
        offers = map(Offer.of, self.jobs.join_requests())
        joining = {one.member for one in offers if not self._is_dead(one.member)}
        return len(joining.union(self.members))

    def waiting_to_join(self) -> int:
        """Return how many processes have requested to join so far, as far as rank 0 knows."""
        return len(self.jobs.join_requests()) if self._shares and self.rank == 0 else 0

    @property
    def _shares(self) -> bool:
        return not (self.joining or self.left)

    def admit(self, capture: Callable[[], bytes]) -> None:
        """Let those join that the members know of; all call it between two steps.

        Args:
            capture: returns the state of the run; called on the first member.
        """
        if self.requested <= self._admitted:
            return
        began, first = time.monotonic(), self._admitted
        self._admitted = self.requested

        def send() -> list[int]:
            sent = self._send_state(first, capture) if self.rank == 0 else []
            found: list[list[int]] = [sent]
            if len(self.members) > 1:
                found = gather_objects(sent, self.wait_for)
            return found[0]

        lost = self.lost_seconds
        joined = self.run(send)
        self._regroup_with(joined)
        self.lost_seconds = lost
        self._count_lost(began)
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
            self._form(since)

    def _is_dead(self, member: int) -> bool:
        return self.jobs.died_at(member) is not None

    def _send_state(self, first: int, capture: Callable[[], bytes]) -> list[int]:
        """Send the state to those that wait for it; return who has received it."""
        received, state = [], b""
        head = Head(self.finished + 1, self.requested, self.generation)
        for offer in map(Offer.of, self.jobs.join_requests()[first : self.requested]):
            is_there = not self._is_dead(offer.member) and offer.member not in self.members
            if is_there and offer.fit == self._fit:
                with self.waits(waiting=False):
                    state = state or capture()
                    if send_state(self._address[0], offer, head, state):
                        received.append(offer.member)
        return received

    def join(self) -> bytes | None:
        """Ask the members to let this process join, and return the state of the run.

        It returns when this process is a member. Until `begin` is called, it works alone. It
        returns None if the members are in a later fit of the script.
        """
        with self.waits(), StateReceiver(self._address[0]) as receiver:
            self.jobs.request_join(str(Offer(self.member, receiver.port, self._fit)))
            found: tuple[Head, bytes] | None = None
            while found is None or self.member not in self.jobs.newest(found[0].generation)[1]:
                if self.jobs.has("fit") and int(self.jobs.store.get("fit")) > self._fit:
                    return None
                found = receiver.next(_WAIT) or found
        head, state = found
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


def _check_failures(count: int) -> None:
    if count == _MOST_FAILURES:
        raise StokerError(
            f"the processes could not connect to each other in {count} attempts: an elastic job "
            "needs connections by TCP between all of them"
        )


def _difference(some: Sequence[int], others: Sequence[int]) -> list[int]:
    return [one for one in some if one not in others]
