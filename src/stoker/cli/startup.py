"""Faster start-up and exit: keep imported modules out of garbage collection."""

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache


@contextmanager
def frozen_imports() -> Iterator[None]:
    """Exclude everything imported inside the block from garbage collection.

    Torch alone creates half a million objects. Scanning them slows down their import and takes
    most of a second at exit.
    """
    if not _owns_process() or not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
        gc.freeze()
    finally:
        gc.enable()


@cache
def _owns_process() -> bool:
    """Return False inside a program that imported torch itself and may have garbage to collect."""
    return "torch" not in sys.modules
