"""What holds for every test: its tier, its place in the order, and a limit for hangs."""

import gc
import logging
import os
import signal
import sys
from collections.abc import Generator, Iterator
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any

import psutil
import pytest
from hypothesis import settings

from support.sample import describe

# Torch's compiler would fork helpers of its own, from processes that have threads.
os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")

# Where CI is set, the progress hook prints lines even on a terminal; tests set it themselves.
os.environ.pop("CI", None)

# Some virtual machines announce AMX without having it, and end what computes in bfloat16.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")

# A gateway to Spark that has ended complains whenever Python collects it, in any later test.
logging.getLogger("py4j").setLevel(logging.CRITICAL)

# A deadline would judge by time, which says nothing on a busy machine.
settings.register_profile("stoker", deadline=None)
settings.load_profile("stoker")

TESTS = Path(__file__).parent
TIERS = ("process", "browser", "ray", "spark", "slow")
FORKING = {"testing", "resume", "checkpoint", "test_kills.py", "test_towhee_resume.py"}
SPREAD = {"test_resume.py", "test_peers.py", "test_faults.py", "test_cookbook.py"}
WAITING = {"test_stuck.py"}
"""Files whose tests wait for minutes, while other workers compute."""
COSTS = {
    "parallel/test_logical_ranks.py": 90,
    "parallel/test_layouts.py": 45,
    "parallel/test_hooks.py": 31,
    "parallel/test_kills.py": 25,
    "parallel/test_optimizers.py": 16,
    "data/test_streams.py": 16,
    "parallel/test_one_config.py": 12,
}
"""Seconds of processor time of the longest files: of those of a tier, they start first."""
HANG = 1200.0  # seconds; the longest test kills jobs on Spark, which takes three minutes
HARMLESS = ("git", "fc-list")
"""Programs that any test may start: a run notes its commit, matplotlib lists fonts once."""
STARTED: list[str] = []
"""The processes that the current test has started, as far as a tier is concerned."""


def pytest_report_header() -> str:
    """Print the seed by which matrices of cases are sampled."""
    return describe()


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """Exempt what was imported from garbage collection, which copies it in forked processes."""
    gc.collect()
    gc.freeze()


def pytest_configure() -> None:
    """A shell lets what it runs in the background ignore Ctrl-C, which all children inherit."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Do not import a file for the unit tier whose tests all belong to another one."""
    if config.option.markexpr == "unit" and collection_path.name.startswith("test_"):
        return "\npytestmark = pytest.mark." in collection_path.read_text(encoding="utf-8") or None
    return None


@pytest.hookimpl(wrapper=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> Generator[None, object, object]:
    """Sort tests into tiers, into an order, and into groups that share a worker of xdist."""
    for item in items:
        if not any(item.get_closest_marker(tier) for tier in TIERS):
            item.add_marker(pytest.mark.unit)
        if item.path.name not in SPREAD:
            item.add_marker(pytest.mark.xdist_group(_group(item)))
    items.sort(key=_turn)
    result = yield
    for item in items:
        _let_pytest_know_the_group(item)
    return result


def _group(item: pytest.Item) -> str:
    """Return the service that a test needs, or its file: fixtures of a module are made once."""
    services = (name for name in ("ray", "spark") if item.get_closest_marker(name))
    return next(services, item.path.relative_to(TESTS).as_posix())


def _let_pytest_know_the_group(item: pytest.Item) -> None:
    """Keep the name with a group that xdist 3.8 gives to a test; pytest 9.2 reads ``_id``."""
    mark = item.get_closest_marker("xdist_group")
    if mark is None or not getattr(item.config.option, "loadgroup", False):
        return
    if hasattr(item, "_id") and "_nodeid" in vars(item):
        item._id = type(item._id).parse(item._nodeid)
    if not item.nodeid.endswith(f"@{mark.args[0]}"):
        raise pytest.UsageError(f"xdist ignores the group {mark.args[0]!r} of {item.nodeid}")


def _turn(item: pytest.Item) -> tuple[int, bool, int]:
    """Tests that fork come first, since threads do not survive a fork; then the longest ones.

    Among the tests of a cluster, those come first that start one themselves.
    """
    cost = -COSTS.get(item.path.relative_to(TESTS).as_posix(), 0)
    if not FORKING.isdisjoint(item.path.parts):
        return 0, False, cost
    if item.path.name in WAITING:
        return 1, False, cost
    turns = (turn for turn, tier in enumerate(LONGEST, 1) if item.get_closest_marker(tier))
    shares = not {"ray", "spark"}.isdisjoint(getattr(item, "fixturenames", ()))
    return next(turns, 9), shares, cost


LONGEST = ("spark", "ray", "process", "browser", "slow")


def _note_process(event: str, args: tuple[object, ...]) -> None:
    if event == "subprocess.Popen":
        command = str(args[0] or args[1])
        if not any(name in command for name in HARMLESS):
            STARTED.append(command)
    elif event in {"os.fork", "os.forkpty", "os.posix_spawn", "support.pool.run"}:
        STARTED.append(event)


sys.addaudithook(_note_process)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Let the ranks and commands that a test starts be forked from one server."""
    if item.get_closest_marker("process"):
        from support.server import ensure_server

        ensure_server()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Fail a test of the unit tier that starts a process."""
    STARTED.clear()
    result = yield
    if STARTED and item.get_closest_marker("unit"):
        pytest.fail(f"mark this test with @pytest.mark.process: it started {STARTED}")
    return result


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Fail a test that hangs by its name, and end the processes it has started."""

    def give_up(*_: object) -> None:
        report = [f"hangs: {item.nodeid} did not end within {HANG:g} s, with processes"]
        for one in psutil.Process().children(recursive=True):
            with suppress(psutil.Error):  # it has ended by now
                report.append(f"{one.pid} of {one.ppid()}: {' '.join(one.cmdline())[:200]}")
                one.send_signal(signal.SIGABRT)  # a forked one shows its stacks and dies
        pytest.fail("\n".join(report))

    before = signal.signal(signal.SIGALRM, give_up)
    signal.setitimer(signal.ITIMER_REAL, HANG)
    try:
        return (yield)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@pytest.fixture(autouse=True)
def own_logs() -> Iterator[None]:
    """Close the log files that a test, or a script in it, has opened for the process."""
    loggers = [logging.getLogger(name) for name in ("stoker", "libai")]
    before = [list(logger.handlers) for logger in loggers]
    yield
    for logger, handlers in zip(loggers, before, strict=True):
        logger.handlers[:] = handlers


@pytest.fixture(scope="session")
def ray() -> Iterator[ModuleType]:
    """The Ray instance that all tests share, on this machine, however busy it is.

    Those that start one themselves run before, see `_turn`.
    """
    os.environ.setdefault("RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S", "600")
    import ray

    ray.init(
        address="local",
        num_cpus=2,
        include_dashboard=False,
        log_to_driver=False,
        _node_ip_address="127.0.0.1",
    )
    yield ray
    ray.shutdown()


@pytest.fixture(scope="session")
def spark() -> Iterator[Any]:
    """The Spark session that all tests share, on this machine.

    Those that start one themselves run before, see `_turn`.
    """
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    session = builder.config("spark.ui.showConsoleProgress", "false").getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    yield session
    session.stop()
