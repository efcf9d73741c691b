"""What holds for every test."""

import logging
import os
import signal
from collections.abc import Generator, Iterator
from contextlib import suppress

import psutil
import pytest

# Torch's compiler would fork helpers of its own, from processes that have threads.
os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")

# Some virtual machines announce AMX without having it, and end what computes in bfloat16.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")

FORKING = {"testing", "resume", "checkpoint", "test_kills.py", "test_towhee_resume.py"}
PATIENCE = 600.0  # seconds; the longest test kills jobs on Spark, which takes three minutes


def pytest_configure() -> None:
    """A shell lets what it runs in the background ignore Ctrl-C, which all children inherit."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests that fork come first: threads that other tests have started do not outlive a fork."""
    items.sort(key=lambda item: FORKING.isdisjoint(item.path.parts))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """A test that stands still fails by its name, and what it has started dies."""

    def give_up(*_: object) -> None:
        words = [f"stands still: {item.nodeid} did not end within {PATIENCE:g} s, with processes"]
        for one in psutil.Process().children(recursive=True):
            with suppress(psutil.Error):  # it has ended by now
                words.append(f"{one.pid} of {one.ppid()}: {' '.join(one.cmdline())[:200]}")
                one.send_signal(signal.SIGABRT)  # a forked one shows its stacks and dies
        pytest.fail("\n".join(words))

    before = signal.signal(signal.SIGALRM, give_up)
    signal.setitimer(signal.ITIMER_REAL, PATIENCE)
    try:
        return (yield)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@pytest.fixture(autouse=True)
def own_logs() -> Iterator[None]:
    """Log files that a test, or a script in it, opens for its process end with the test."""
    loggers = [logging.getLogger(name) for name in ("stoker", "libai")]
    before = [list(logger.handlers) for logger in loggers]
    yield
    for logger, handlers in zip(loggers, before, strict=True):
        logger.handlers[:] = handlers
