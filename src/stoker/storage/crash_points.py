"""Named points of the commit protocol, where a test can end the process."""

import os
import signal


def at(point: str) -> None:
    """Pass a point; ``STOKER_KILL_AT=point[:n]`` kills the process at its n-th passing."""
    wanted = os.environ.get("STOKER_KILL_AT")
    if not wanted:
        return
    name, _, left = wanted.partition(":")
    if name != point:
        return
    if int(left or 1) > 1:
        os.environ["STOKER_KILL_AT"] = f"{name}:{int(left) - 1}"
    else:
        os.kill(os.getpid(), signal.SIGKILL)
