"""Named points of the write path at which a test kills the process."""

import os
import signal


def at(point: str) -> None:
    """Mark a point; with ``STOKER_KILL_AT=point[:n]`` the n-th pass kills the process."""
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
