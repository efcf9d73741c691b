"""`Requests`: what is asked of a run, and what its processes have agreed to do."""

from enum import IntEnum
from typing import Literal, TypeAlias

Request: TypeAlias = Literal["evaluate", "log", "save", "end_epoch"]


class Signal(IntEnum):
    """What a signal asks of a run; the larger prevails."""

    NOTHING = 0
    STOP = 1
    """Ctrl-C: to end."""
    LEAVE = 2
    """SIGTERM: to save, and to leave the machine to others."""


class Requests:
    """What is asked of a run. Alone, a process does it; distributed, all do it at the same step.

    Attributes:
        active: the wishes that come true with the step in hand.
        stop_reason: why the run ends, None while it goes on.
        signal: whether a signal ends it.
        distributed: whether there are other processes, which have to be asked first.
        local: wishes that the others do not know of yet.
        local_stop, local_signal: the same for an end of the run.
        may_leave: whether the run is saved as it is, so that a signal may end it in the middle of
            a validation.
    """

    __slots__ = (
        "active",
        "distributed",
        "local",
        "local_signal",
        "local_stop",
        "may_leave",
        "signal",
        "stop_reason",
    )

    def __init__(self) -> None:
        self.distributed = self.may_leave = False
        self.active: set[str] = set()
        self.local: set[str] = set()
        self.forget_stop()

    def forget_stop(self) -> None:
        """Nobody has asked for an end."""
        self.stop_reason: str | None = None
        self.local_stop: str | None = None
        self.signal = Signal.NOTHING
        self.local_signal = Signal.NOTHING

    @property
    def must_leave(self) -> bool:
        """Whether the run ends because others want the machine."""
        return self.signal is Signal.LEAVE

    def stop(self, reason: str, signal: Signal = Signal.NOTHING) -> None:
        """Ask for an end of the run. The first reason given is kept."""
        self.local_stop = self.local_stop or reason
        self.local_signal = max(self.local_signal, signal)
        if not self.distributed:
            self.confirm_stop(self.local_stop, self.local_signal)

    def confirm_stop(self, reason: str, signal: Signal = Signal.NOTHING) -> None:
        """The run ends after the step in hand."""
        self.stop_reason, self.signal = self.stop_reason or reason, max(self.signal, signal)

    def add(self, request: Request) -> None:
        """Ask for something to be done after the step in hand."""
        (self.local if self.distributed else self.active).add(request)
