"""What Towhee's ``utils`` have: its logger, and packages that only some functions need."""

import logging
import sys
from importlib import import_module
from importlib.util import find_spec
from typing import Any

_MODULES = {"PILImage": "PIL.Image", "matplotlib": "matplotlib", "plt": "matplotlib.pyplot"}
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


def __getattr__(name: str) -> Any:
    if name.startswith("is_") and name.endswith("_available"):
        package = name.removeprefix("is_").removesuffix("_available")
        return lambda: find_spec(package) is not None
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return import_module(_MODULES[name])
