"""What holds for every test."""

import logging
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def own_logs() -> Iterator[None]:
    """Log files that a test, or a script in it, opens for its process end with the test."""
    loggers = [logging.getLogger(name) for name in ("stoker", "libai")]
    before = [list(logger.handlers) for logger in loggers]
    yield
    for logger, handlers in zip(loggers, before, strict=True):
        logger.handlers[:] = handlers
