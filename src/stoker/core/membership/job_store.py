"""`JobStore`: what the launcher and the members of an elastic job know together."""

import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

MEMBER, JOINS, SECRET = "STOKER_MEMBER", "STOKER_JOINS", "STOKER_ELASTIC_SECRET"
"""The environment of a member: its number, whether it joins later, and the key of connections."""


@dataclass(frozen=True)
class Progress:
    """What a member reports about itself, about once a second.

    Attributes:
        number: different in each report.
        waiting: whether it waits for other members.
        in_group: whether it is in an operation of its group, which ends with that group.
        finished: the number of collectives that it has finished.
        generation: the group that it belongs to.
    """

    number: int
    waiting: bool
    in_group: bool
    finished: int
    generation: int


class JobStore:
    """The store of an elastic job, which the launcher hosts.

    Args:
        store: a connection to it, for one thread.
    """

    def __init__(self, store: Any) -> None:
        self.store = store

    def has(self, key: str) -> bool:
        """Return whether a key is set."""
        return bool(self.store.check([key]))

    # Generations

    def members(self, generation: int) -> list[int] | None:
        """Return the members of a generation; None if there is no such generation yet."""
        key = f"generation/{generation}"
        return _numbers(self.store.get(key)) if self.has(key) else None

    def propose(self, generation: int, members: Sequence[int]) -> list[int]:
        """Propose the members of a generation; return those of the first proposal."""
        wanted = ",".join(map(str, members))
        return _numbers(self.store.compare_set(f"generation/{generation}", "", wanted or ","))

    def newest(self, generation: int) -> tuple[int, list[int]]:
        """Return the newest generation and its members, from one that exists on."""
        members = self.members(generation)
        assert members is not None
        while (later := self.members(generation + 1)) is not None:
            generation, members = generation + 1, later
        return generation, members

    # What happens to members

    def report(self, member: int, progress: Progress) -> None:
        """Report the progress of a member."""
        self.store.set(f"progress/{member}", json.dumps(asdict(progress)))

    def progress(self, member: int) -> Progress | None:
        """Return the last report of a member; None if there is none yet."""
        key = f"progress/{member}"
        return Progress(**json.loads(self.store.get(key))) if self.has(key) else None

    def bury(self, member: int) -> None:
        """Record that a member has exited, now."""
        self.store.set(f"dead/{member}", str(time.time()))

    def died_at(self, member: int) -> float | None:
        """Return when a member has exited, in seconds since 1970; None if it has not."""
        key = f"dead/{member}"
        return float(self.store.get(key)) if self.has(key) else None

    # Requests to join

    def request_join(self, offer: str) -> None:
        """Add an offer to receive the state of the run; one that is there is complete."""
        self.store.append("joins", f"{offer};")

    def join_requests(self) -> list[str]:
        """Return the offers of all processes that have requested to join, oldest first."""
        found = self.store.get("joins").decode() if self.has("joins") else ""
        return found.split(";")[:-1]


def _numbers(found: bytes) -> list[int]:
    return [int(one) for one in found.decode().split(",") if one]
