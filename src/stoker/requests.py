"""`Requests`: what is asked of a run, and what its processes have agreed to do."""

from enum import IntEnum
from typing import Literal, TypeAlias

Wish: TypeAlias = Literal["evaluate", "log", "save", "end_epoch"]


class Signal(IntEnum):
    """What a signal asks of a run; the larger prevails."""

    NOTHING = 0
    STOP = 1
    """Ctrl-C: to end."""
    LEAVE = 2
    """SIGTERM: to save, and to leave the machine to others."""


class Requests:
    """What is asked of a run. Alone, a process does it; together, all do it at the same step.

    Attributes:
        granted: the wishes that come true with the step in hand.
        stop_reason: why the run ends, None while it goes on.
        signal: whether a signal ends it.
        together: whether there are other processes, which have to be asked first.
        pending: wishes that the others do not know of yet.
        asked_to_stop, asked_by: the same for an end of the run.
        may_leave: whether the run is saved as it is, so that a signal may end it in the middle of
            a validation.
    """

    __slots__ = (
        "asked_by",
        "asked_to_stop",
        "granted",
        "may_leave",
        "pending",
        "signal",
        "stop_reason",
        "together",
    )

    def __init__(self) -> None:
        self.together = self.may_leave = False
        self.granted: set[str] = set()
        self.pending: set[str] = set()
        self.forget_stop()

    def forget_stop(self) -> None:
        """Nobody has asked for an end."""
        self.stop_reason: str | None = None
        self.asked_to_stop: str | None = None
        self.signal = Signal.NOTHING
        self.asked_by = Signal.NOTHING

    @property
    def must_leave(self) -> bool:
        """Whether the run ends because others want the machine."""
        return self.signal is Signal.LEAVE

    def stop(self, reason: str, signal: Signal = Signal.NOTHING) -> None:
        """Ask for an end of the run. The first reason given is kept."""
        self.asked_to_stop = self.asked_to_stop or reason
        self.asked_by = max(self.asked_by, signal)
        if not self.together:
            self.grant_stop(self.asked_to_stop, self.asked_by)

    def grant_stop(self, reason: str, signal: Signal = Signal.NOTHING) -> None:
        """The run ends after the step in hand."""
        self.stop_reason, self.signal = self.stop_reason or reason, max(self.signal, signal)

    def ask(self, wish: Wish) -> None:
        """Ask for something to be done after the step in hand."""
        (self.pending if self.together else self.granted).add(wish)
