"""`Requests`: what hooks and signals request of a run."""

from enum import IntEnum
from typing import Literal, TypeAlias

Request: TypeAlias = Literal["evaluate", "log", "save", "end_epoch"]


class Signal(IntEnum):
    """The effect of a signal on a run; the larger value prevails."""

    NONE = 0
    STOP = 1
    """Ctrl-C: end the run."""
    PREEMPT = 2
    """SIGTERM: save, and release the machine."""


class Requests:
    """Requests of one run.

    In a single process a request is active at once. In a job of several ranks it stays local until
    the ranks agree on it, so that all of them act at the same step.

    Attributes:
        active: requests in effect for the current step.
        stop_reason: why the run ends, None while it continues.
        signal: the signal that ends it, if one does.
        distributed: whether other ranks have to agree first.
        local: requests made on this rank that the others do not know of yet.
        local_stop, local_signal: the same for ending the run.
        may_exit: whether the run is saved as it is, so that a signal may end it in the middle of
            a validation.
    """

    __slots__ = (
        "active",
        "distributed",
        "local",
        "local_signal",
        "local_stop",
        "may_exit",
        "signal",
        "stop_reason",
    )

    def __init__(self) -> None:
        self.distributed = self.may_exit = False
        self.active: set[str] = set()
        self.local: set[str] = set()
        self.clear_stop()

    def clear_stop(self) -> None:
        """Forget every request to end the run."""
        self.stop_reason: str | None = None
        self.local_stop: str | None = None
        self.signal = Signal.NONE
        self.local_signal = Signal.NONE

    @property
    def preempted(self) -> bool:
        """Whether the run ends because the machine is needed."""
        return self.signal is Signal.PREEMPT

    def stop(self, reason: str, signal: Signal = Signal.NONE) -> None:
        """Request the end of the run. The first reason given is kept."""
        self.local_stop = self.local_stop or reason
        self.local_signal = max(self.local_signal, signal)
        if not self.distributed:
            self.confirm_stop(self.local_stop, self.local_signal)

    def confirm_stop(self, reason: str, signal: Signal = Signal.NONE) -> None:
        """End the run after the current step: all ranks agree."""
        self.stop_reason, self.signal = self.stop_reason or reason, max(self.signal, signal)

    def add(self, request: Request) -> None:
        """Request an action after the current step."""
        (self.local if self.distributed else self.active).add(request)
