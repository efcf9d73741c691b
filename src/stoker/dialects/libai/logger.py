"""Set up the log of a script."""

import logging
import sys
from pathlib import Path

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

    def __init__(self, abbrev_name: str | None) -> None:
        super().__init__(logging.INFO)
        form = f"[%(asctime)s {abbrev_name or '%(name)s'}]: %(message)s"
        self.setFormatter(logging.Formatter(form, datefmt="%m/%d %H:%M:%S"))

    def emit(self, record: logging.LogRecord) -> None:
        print(self.format(record), file=sys.stdout, flush=True)
