"""The loggers of Towhee, which write lines in its format to standard error."""

import logging
import sys

_LINE = "%(asctime)s - %(thread)d - %(filename)s-%(module)s:%(lineno)d - %(levelname)s: %(message)s"


class _Terminal(logging.Handler):
    """Write to the current standard error."""

    def emit(self, record: logging.LogRecord) -> None:
        print(self.format(record), file=sys.stderr)


def _logger(name: str) -> logging.Logger:
    log = logging.getLogger(name)
    if not log.handlers:
        handler = _Terminal(logging.WARNING)
        handler.setFormatter(logging.Formatter(_LINE))
        log.addHandler(handler)
    return log


trainer_log = _logger("towhee.trainer")
"""The logger of the trainer, and of scripts that import it."""
