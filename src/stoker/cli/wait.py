"""``stoker wait``: wait until a run has ended."""

import argparse
import sys
import time
from pathlib import Path

from stoker.cli.common import FAILED, INTERRUPTED, OK, given_path, run_folder
from stoker.cli.status import emit_status, status_of
from stoker.core.errors import ConfigError

TIMED_OUT, PREEMPTED, KILLED = 124, 143, 137

_CODES = {
    "finished": OK,
    "failed": FAILED,
    "stopped": OK,
    "preempted": PREEMPTED,
    "dead": KILLED,
    "running": TIMED_OUT,
}
"""State → exit code; 130 after Ctrl-C. A run that is still running has timed out."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("run", metavar="RUN", help="A run folder.")
    parser.add_argument(
        "--timeout", type=float, metavar="S", help="Give up after S seconds, with exit code 124."
    )
    parser.add_argument(
        "--start-timeout",
        type=float,
        default=0.0,
        metavar="S",
        help="Wait up to S seconds for the run folder to appear. Default: 0.",
    )
    parser.add_argument(
        "--interval",
        type=float,
        default=2.0,
        metavar="S",
        help="Seconds between looks. Default: 2.",
    )


def run(options: argparse.Namespace) -> int:
    """Wait, print the state, and return how the run ended."""
    for name in ("timeout", "start_timeout", "interval"):
        seconds = getattr(options, name)
        if seconds is not None and not seconds >= 0:
            option = name.replace("_", "-")
            raise ConfigError(f"--{option} must be a number of seconds from 0, got {seconds:g}")
    path = given_path(options.run, "the run")
    folder = _appeared(path, options.start_timeout, options.interval)
    until = None if options.timeout is None else time.monotonic() + options.timeout
    while status_of(folder)["state"] == "running":
        if until is not None and time.monotonic() >= until:
            print(f"stoker: {folder} is still running", file=sys.stderr)
            break
        time.sleep(_pause(options.interval, until))
    ending = emit_status(folder)
    return INTERRUPTED if ending.interrupted else _CODES[ending.state]


def _appeared(path: Path, seconds: float, interval: float) -> Path:
    """Return the run folder as soon as it is there."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        try:
            return run_folder(path)
        except ConfigError:
            time.sleep(_pause(interval, until))
    return run_folder(path)


def _pause(interval: float, until: float | None) -> float:
    left = interval if until is None else until - time.monotonic()
    return max(0.0, min(interval, left))
