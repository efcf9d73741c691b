"""Ctrl-C: once to stop cleanly, twice to stop at once."""

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from stoker.log import get_logger

_log = get_logger()


@contextmanager
def stop_on_interrupt(stop: Callable[[str], None]) -> Iterator[None]:
    """Within it the first SIGINT calls ``stop``, a second raises KeyboardInterrupt.

    Outside the main thread, where Python takes no signals, it does nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    interrupted, owner = False, os.getpid()

    def handle(_: int, __: FrameType | None) -> None:
        nonlocal interrupted
        if os.getpid() != owner:
            return  # a worker of a loader that inherited the handler
        if interrupted:
            raise KeyboardInterrupt
        interrupted = True
        _log.info(
            "Ctrl-C: the run stops after this step or validation; again stops it at once",
            ranks=None,
        )
        stop("interrupted by Ctrl-C")

    before = signal.signal(signal.SIGINT, handle)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
