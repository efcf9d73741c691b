"""Signals: Ctrl-C once to stop cleanly, twice to stop at once; SIGTERM to save and leave."""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from stoker.core.errors import Preempted
from stoker.core.log import get_logger
from stoker.core.requests import Requests, Signal

_log = get_logger()
_ASKED_TO_END = tuple(
    getattr(signal, name) for name in ("SIGTERM", "SIGUSR1") if hasattr(signal, name)
)


class Interrupts:
    """What signals ask of a run. A stop comes after the step in hand.

    Args:
        requests: those of the run.
        grace: seconds after which a run that was asked to end is left where it is.
    """

    def __init__(self, requests: Requests, grace: float = 30.0) -> None:
        self._requests = requests
        self.grace = grace
        self._owner = os.getpid()
        self._ctrl_c = False
        self.asked = False
        self.waiting = False
        """Whether the run waits for data, which may be given up at once."""
        self._alarm_before: tuple[Any, tuple[float, float]] | None = None

    def on_ctrl_c(self, _: int, __: FrameType | None) -> None:
        """The first one stops, the second raises."""
        if os.getpid() != self._owner:
            return  # a worker of a loader that inherited the handler
        if self._ctrl_c:
            raise KeyboardInterrupt
        self._ctrl_c = True
        _log.info(
            "Ctrl-C: the run stops after this step or validation; again stops it at once",
            ranks=None,
        )
        self._ask("interrupted by Ctrl-C", Signal.STOP)

    def on_end(self, number: int, _: FrameType | None) -> None:
        """The machine is wanted by others: stop, save, and leave within the grace time."""
        if os.getpid() != self._owner:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
            return
        name = signal.Signals(number).name
        _log.info(f"{name}: the run saves after this step and ends", ranks=None)
        self._limit_time()
        self._ask(f"preempted by {name}", Signal.LEAVE)
        if self._requests.may_leave and not self._requests.distributed:
            raise Preempted

    def on_out_of_time(self, _: int, __: FrameType | None) -> None:
        """The step did not end in time: what was saved before is what there is."""
        _log.warning(
            f"the step in hand did not end within the grace time of {self.grace:g} s: the last "
            "checkpoint stays",
            ranks=None,
        )
        raise Preempted

    def _limit_time(self) -> None:
        if self._alarm_before is None and hasattr(signal, "setitimer"):
            handler = signal.signal(signal.SIGALRM, self.on_out_of_time)
            self._alarm_before = handler, signal.setitimer(signal.ITIMER_REAL, self.grace)

    def give_alarm_back(self) -> None:
        """Nothing more is limited in time, but by an alarm that someone else had set before."""
        if self._alarm_before is not None:
            handler, timer = self._alarm_before
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, handler)
            signal.setitimer(signal.ITIMER_REAL, *timer)
            self._alarm_before = None

    def _ask(self, reason: str, signal: Signal) -> None:
        first, self.asked = not self.asked, True
        self._requests.stop(reason, signal)
        if self.waiting and first:
            self.waiting = False
            raise StopWaiting


class StopWaiting(BaseException):
    """Ends a wait for data."""


@contextmanager
def listening(interrupts: Interrupts) -> Iterator[None]:
    """Within it signals are taken; outside the main thread Python takes none."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handlers = {signal.SIGINT: interrupts.on_ctrl_c}
    handlers |= dict.fromkeys(_ASKED_TO_END, interrupts.on_end)
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield
    finally:
        interrupts.give_alarm_back()
        for number, handler in before.items():
            signal.signal(number, handler)
