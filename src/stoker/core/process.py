"""What Linux knows of a process: its state, its start, its signals; elsewhere nothing is known."""

import ctypes
import os
import signal
import sys
from contextlib import suppress
from pathlib import Path
from select import select

_SET_PARENT_DEATH_SIGNAL, _GET_PARENT_DEATH_SIGNAL = 1, 2  # of prctl(2)


def print_last(message: str) -> bool:
    """Print an error of a process that is about to end; return whether anybody can read it.

    It takes no lock, and does not fail or block if whoever read stderr is gone or stands still.
    """
    with suppress(OSError):
        if select([], [2], [], 5.0)[1]:
            os.write(2, f"error: {message}\n".encode())
            return True
    return False


def is_pending(pid: int, number: int) -> bool:
    """Return whether a signal has been sent to a process that has not received it yet."""
    return bool(int(_status_of(pid, "ShdPnd") or "0", 16) >> (number - 1) & 1)


def continue_without_launcher() -> None:
    """Let this process continue when its parent exits while it is stopped (Linux).

    It then notices that its launcher is gone, and ends.
    """
    if sys.platform == "linux":
        prctl, present = ctypes.CDLL(None).prctl, ctypes.c_int()
        prctl(_GET_PARENT_DEATH_SIGNAL, ctypes.byref(present))
        if not present.value:
            prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGCONT)


def process_stat(pid: int) -> tuple[str, str]:
    """Return the state of a process and when it started; two empty strings if it is gone."""
    with suppress(OSError, ValueError):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return fields[0], fields[19]
    return "", ""


def is_traced() -> bool:
    """Return whether a debugger such as gdb is attached to this process."""
    return _status_of("self", "TracerPid").strip() not in ("", "0")


def _status_of(pid: int | str, name: str) -> str:
    """Return an entry of the status of a process, "" if there is none."""
    with suppress(OSError, ValueError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith(f"{name}:"):
                return line.partition(":")[2]
    return ""
