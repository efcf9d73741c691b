"""What holds for every test."""

import logging
from collections.abc import Iterator

import pytest

FORKING = {"testing", "resume", "checkpoint", "test_kills.py", "test_towhee_resume.py"}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests that fork come first: threads that other tests have started do not outlive a fork."""
    items.sort(key=lambda item: FORKING.isdisjoint(item.path.parts))


@pytest.fixture(autouse=True)
def own_logs() -> Iterator[None]:
    """Log files that a test, or a script in it, opens for its process end with the test."""
    loggers = [logging.getLogger(name) for name in ("stoker", "libai")]
    before = [list(logger.handlers) for logger in loggers]
    yield
    for logger, handlers in zip(loggers, before, strict=True):
        logger.handlers[:] = handlers
