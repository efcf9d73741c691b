"""`Requests`: what is asked of a run, and what its processes have agreed to do."""

from typing import Literal, TypeAlias

Wish: TypeAlias = Literal["evaluate", "log", "save", "end_epoch"]
Signal: TypeAlias = Literal[0, 1, 2]
"""What a signal asks: nothing, to stop (Ctrl-C), or to leave the machine (SIGTERM)."""


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
        self.signal: int = 0
        self.asked_by: int = 0

    def stop(self, reason: str, signal: Signal = 0) -> None:
        """Ask for an end of the run. The first reason given is kept."""
        self.asked_to_stop = self.asked_to_stop or reason
        self.asked_by = max(self.asked_by, signal)
        if not self.together:
            self.grant_stop(self.asked_to_stop, self.asked_by)

    def grant_stop(self, reason: str, signal: int) -> None:
        """The run ends after the step in hand."""
        self.stop_reason, self.signal = self.stop_reason or reason, max(self.signal, signal)

    def ask(self, wish: Wish) -> None:
        """Ask for something to be done after the step in hand."""
        (self.pending if self.together else self.granted).add(wish)
