"""Signals: Ctrl-C once stops cleanly, twice stops at once; SIGTERM saves and exits."""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from select import select
from time import monotonic
from types import FrameType
from typing import Any

from stoker.core import dist
from stoker.core.errors import Preempted
from stoker.core.log import get_logger
from stoker.core.process import print_last
from stoker.core.run_requests import Requests, Signal

_log = get_logger()
_PREEMPTING = tuple(
    getattr(signal, name) for name in ("SIGTERM", "SIGUSR1") if hasattr(signal, name)
)


class SignalHandler:
    """Turns signals into requests of a run, which stops after the current step.

    Args:
        requests: the requests of the run.
        grace: seconds after which a preempted run is abandoned where it is.

    Attributes:
        received: whether a signal has come.
        preempted: whether SIGTERM or SIGUSR1 has.
        waiting: whether the run waits for data, which a signal may interrupt.
    """

    def __init__(self, requests: Requests, grace: float = 30.0) -> None:
        self._requests = requests
        self.grace = grace
        self._owner = os.getpid()
        self._ctrl_c = False
        self.received = self.preempted = False
        self.waiting = False
        self._alarm_before: tuple[Any, tuple[float, float]] | None = None

    def on_ctrl_c(self, _: int, __: FrameType | None) -> None:
        """Stop after the current step; the second time, raise."""
        if os.getpid() != self._owner:
            return  # a loader worker that inherited the handler
        if self._ctrl_c:
            raise KeyboardInterrupt
        self._ctrl_c = True
        _log.info(
            "Ctrl-C: stopping after this step or validation; press it again to stop at once",
            ranks=None,
        )
        self._request_stop("interrupted by Ctrl-C", Signal.STOP)

    def on_preempt(self, number: int, _: FrameType | None) -> None:
        """Save after the current step and exit, within the grace period."""
        if os.getpid() != self._owner:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
            return
        name = signal.Signals(number).name
        members = dist.members()
        if number == signal.SIGTERM and members is not None:
            members.leave(lambda: self._preempt(name))
        else:
            self._preempt(name)

    def _preempt(self, name: str) -> None:
        _log.info(f"{name}: saving after this step, then exiting", ranks=None)
        self._start_alarm()
        self.preempted = True
        self._request_stop(f"preempted by {name}", Signal.PREEMPT)
        if self._requests.may_exit and not self._requests.distributed:
            raise Preempted

    def on_alarm(self, _: int, __: FrameType | None) -> None:
        """Exit: the current step did not end within the grace period."""
        _log.warning(
            f"the current step did not end within the grace period of {self.grace:g} s: exiting "
            "with the last checkpoint",
            ranks=None,
        )
        raise Preempted

    def _start_alarm(self) -> None:
        if self._alarm_before is None and hasattr(signal, "setitimer"):
            handler = signal.signal(signal.SIGALRM, self.on_alarm)
            self._alarm_before = handler, signal.setitimer(signal.ITIMER_REAL, self.grace)

    def restore_alarm(self) -> None:
        """Restore the alarm that was set before ours, if any."""
        if self._alarm_before is not None:
            handler, timer = self._alarm_before
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, handler)
            signal.setitimer(signal.ITIMER_REAL, *timer)
            self._alarm_before = None

    def _request_stop(self, reason: str, signal: Signal) -> None:
        first, self.received = not self.received, True
        self._requests.stop(reason, signal)
        if self.waiting and first:
            self.waiting = False
            raise StopWaiting


class StopWaiting(BaseException):
    """Ends a wait for data."""


@contextmanager
def _grace_enforced(handler: SignalHandler) -> Iterator[None]:
    """End this process after the grace period, even if Python cannot run a signal handler.

    A process that waits in a collective for a rank that hangs runs no handler. The interpreter
    writes the number of each signal to a pipe, which a thread reads.
    """
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    before = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    threading.Thread(target=_enforce_grace, args=(reader, before, handler), daemon=True).start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(before)
        os.close(writer)


def _enforce_grace(reader: int, forward_to: int, handler: SignalHandler) -> None:
    deadline: float | None = None
    with open(reader, "rb", buffering=0) as pipe:
        while select([pipe], [], [], deadline and max(0.0, deadline - monotonic()))[0]:
            number = pipe.read(1)
            if not number:
                return
            if forward_to != -1:
                os.write(forward_to, number)
            if number[0] in _PREEMPTING and deadline is None:
                deadline = monotonic() + handler.grace + min(2.0, handler.grace / 10)
    print_last("the grace period is over and the current step has not ended: exiting")
    os._exit(128 + signal.SIGTERM)


@contextmanager
def handling(handler: SignalHandler) -> Iterator[None]:
    """Handle signals within the block; outside the main thread Python delivers none."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handlers = {signal.SIGINT: handler.on_ctrl_c}
    handlers |= dict.fromkeys(_PREEMPTING, handler.on_preempt)
    before = {number: signal.signal(number, one) for number, one in handlers.items()}
    try:
        with _grace_enforced(handler) if dist.world_size() > 1 else nullcontext():
            yield
    except Exception as error:
        if handler.preempted and dist.lost_peer(error):  # it left for the same reason, or hung
            raise Preempted from error
        raise
    finally:
        handler.restore_alarm()
        for number, one in before.items():
            signal.signal(number, one)
