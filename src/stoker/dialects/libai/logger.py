"""Set up the log of a script, and log now and then."""

import logging
import sys
from collections import Counter
from pathlib import Path
from time import monotonic

from stoker.core import dist
from stoker.core.log import LogFile


def setup_logger(
    output: str | Path | None = None,
    distributed_rank: int | None = None,
    *,
    color: bool = True,
    name: str = "libai",
    abbrev_name: str | None = None,
) -> logging.Logger:
    """Log to standard output on rank 0, and to ``log.txt`` (``.rankN``) on each rank.

    What Stoker itself says goes into the same file. Every process knows its rank, so that
    ``distributed_rank`` need not be passed; the log has no colors, whatever ``color`` is.
    """
    logger, core = logging.getLogger(name), logging.getLogger("stoker")
    logger.setLevel(logging.DEBUG)
    for one in (logger, core):
        for old in [old for old in one.handlers if isinstance(old, LogFile | _Output)]:
            one.removeHandler(old)
        if output is not None:
            one.addHandler(LogFile(Path(output), lambda: True))
    if dist.is_main():
        logger.addHandler(_Output(abbrev_name))
    return logger


class _Output(logging.Handler):
    """Return the current standard output."""

    def __init__(self, abbrev_name: str | None = None) -> None:
        super().__init__(logging.INFO)
        form = f"[%(asctime)s {abbrev_name or '%(name)s'}]: %(message)s"
        self.setFormatter(logging.Formatter(form, datefmt="%m/%d %H:%M:%S"))

    def emit(self, record: logging.LogRecord) -> None:
        print(self.format(record), file=sys.stdout, flush=True)


_counts: Counter[tuple[str, ...]] = Counter()
_times: dict[tuple[str, ...], float] = {}


def _place() -> tuple[str, ...]:
    """Return the line that logs."""
    frame = sys._getframe(2)
    return frame.f_code.co_filename, str(frame.f_lineno)


def log_first_n(
    lvl: int,
    msg: str,
    n: int = 1,
    *,
    name: str | None = None,
    key: str | tuple[str, ...] = "caller",
) -> None:
    """Log the first ``n`` times that a line ("caller") or a message is logged."""
    keys = (key,) if isinstance(key, str) else key
    parts = (_place() if "caller" in keys else ()) + ((msg,) if "message" in keys else ())
    _counts[parts] += 1
    if _counts[parts] <= n:
        logging.getLogger(name or "libai").log(lvl, msg)


def log_every_n(lvl: int, msg: str, n: int = 1, *, name: str | None = None) -> None:
    """Log the first, and then every ``n``-th time that a line is reached."""
    place = _place()
    _counts[place] += 1
    if n == 1 or _counts[place] % n == 1:
        logging.getLogger(name or "libai").log(lvl, msg)


def log_every_n_seconds(lvl: int, msg: str, n: float = 1, *, name: str | None = None) -> None:
    """Log at most once in ``n`` seconds for each line."""
    place, now = _place(), monotonic()
    if place not in _times or now - _times[place] >= n:
        logging.getLogger(name or "libai").log(lvl, msg)
        _times[place] = now
