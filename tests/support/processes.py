"""Processes that tests start and watch. Nothing here judges by time: limits only end a hang."""

import time
from collections.abc import Callable
from pathlib import Path

HANG = 400.0
"""Seconds after which something that should happen counts as hanging, on any machine."""

FOREVER = 3600
"""Seconds that a process sleeps which must be ended by somebody else."""


def wait_until(condition: Callable[[], object], what: str) -> None:
    """Wait for the condition, and fail with ``what`` was expected if it never holds."""
    deadline = time.monotonic() + HANG
    while not condition():
        assert time.monotonic() < deadline, f"not within {HANG:g} s: {what}"
        time.sleep(0.02)


def is_alive(pid: str) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def alive(folder: Path) -> list[str]:
    """Return the names of the files ``pid-*`` whose processes are alive."""
    return [path.name for path in folder.glob("pid-*") if is_alive(path.read_text())]


def wait_until_all_have_ended(folder: Path) -> None:
    """Wait for the processes of a job: a cluster ends them soon after it."""
    wait_until(lambda: not alive(folder), f"the end of the processes in {folder}")


def wait_for_files(folder: Path, name: str, *ranks: int) -> None:
    """Wait until each of these ranks has touched ``name-RANK``."""
    files = [folder / f"{name}-{rank}" for rank in ranks]
    wait_until(lambda: all(file.exists() for file in files), f"{name} of ranks {ranks}")


def wait_for_work(folder: Path, *ranks: int) -> None:
    """Wait until the job is at work on these ranks."""
    wait_for_files(folder, "at-work", *ranks)
