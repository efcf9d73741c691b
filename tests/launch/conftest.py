"""A training in several processes, what it comes to when nothing happens, and clusters."""

import os
import sys
from contextlib import chdir

import pytest

from stoker.cli import main
from support.launch.training import CONFIG, LOCAL, plan_faults, result


@pytest.fixture(scope="session")
def uninterrupted(tmp_path_factory) -> dict:
    """What two local processes come to that nothing happens to."""
    folder = tmp_path_factory.mktemp("uninterrupted")
    with chdir(folder):
        assert main(["train", str(CONFIG), *LOCAL]) == 0
    return result(folder / "runs" / "frail")


NOTICE = "hint: hooks 'Dies' act at every step"


@pytest.fixture
def train(tmp_path, monkeypatch, capfd):
    """Trains in processes of their own; the exit code, and what was complained about."""
    monkeypatch.chdir(tmp_path)

    def train(*argv, faults=()) -> tuple[int, str]:
        plan_faults(tmp_path, *faults)
        capfd.readouterr()
        code = main(["train", str(CONFIG), *map(str, argv)])
        lines = capfd.readouterr().err.splitlines(keepends=True)
        return code, "".join(line for line in lines if not line.startswith(NOTICE))

    return train


@pytest.fixture(scope="session")
def ray():
    """One instance for all tests, on this machine, however busy it is."""
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
def spark():
    """One session for all tests, on this machine."""
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    session = builder.config("spark.ui.showConsoleProgress", "false").getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    yield session
    session.stop()
