"""Named points of the write path at which a test kills the process."""

import os
import signal

passed = 0
"""How many points this process has passed, which shows that a save advances."""


def at(point: str) -> None:
    """Mark a point; with ``STOKER_KILL_AT=point[:n]`` the n-th pass kills the process."""
    global passed  # noqa: PLW0603
    passed += 1
    wanted = os.environ.get("STOKER_KILL_AT")
    if not wanted:
        return
    name, _, remaining = wanted.partition(":")
    if name != point:
        return
    if int(remaining or 1) > 1:
        os.environ["STOKER_KILL_AT"] = f"{name}:{int(remaining) - 1}"
    else:
        os.kill(os.getpid(), signal.SIGKILL)
