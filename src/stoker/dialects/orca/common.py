"""The context of a script: its Spark session or Ray cluster."""

import os
import sys
from collections.abc import Mapping
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Literal

from stoker.core.errors import did_you_mean
from stoker.core.log import get_logger

__all__ = ["OrcaContext", "init_orca_context", "stop_orca_context"]

_log = get_logger()
_RUNTIMES = ("spark", "ray")


class OrcaContext:
    """The session or cluster that `init_orca_context` started."""

    session: Any = None
    runtime: str | None = None
    num_nodes: int = 1

    @classmethod
    def get_spark_session(cls) -> Any:
        """Return the active Spark session."""
        if cls.session is None:
            raise RuntimeError(
                "there is no Spark session: call init_orca_context(runtime='spark') first, with "
                "PySpark installed"
            )
        return cls.session

    @classmethod
    def get_spark_context(cls) -> Any:
        """Return the active SparkContext."""
        return cls.get_spark_session().sparkContext


def init_orca_context(
    cluster_mode: str | None = None,
    runtime: Literal["spark", "ray"] = "spark",
    cores: int = 2,
    memory: str = "2g",
    num_nodes: int = 1,
    conf: Mapping[str, str] | None = None,
    address: str | None = None,
) -> Any:
    """Start a Spark session, or join or start a Ray cluster; return the SparkContext or None.

    The ``cluster_mode`` is "local", or what Spark takes as its master; "spark-submit" and None
    leave that to the environment. An estimator counts ``workers_per_node`` on ``num_nodes``.
    ``address`` is of Ray, ``conf`` further settings of Spark. Without PySpark a context "local"
    starts nothing and is None: the backend "local" needs none.
    """
    if runtime not in _RUNTIMES:
        near = did_you_mean(str(runtime), _RUNTIMES)
        raise ValueError(f"runtime is 'spark' or 'ray', got {runtime!r}{near}")
    if OrcaContext.runtime is not None:
        raise RuntimeError(
            f"a context is open already, on {OrcaContext.runtime}: call stop_orca_context() first"
        )
    if runtime == "ray":
        if conf is not None:
            raise ValueError("conf is about Spark; on Ray give an address, or nothing")
        _start_ray(cores, address)
    elif address is not None:
        raise ValueError("address is about Ray; on Spark the cluster_mode is the master")
    elif find_spec("pyspark") is not None:
        OrcaContext.session = _start_spark(cluster_mode, cores, memory, conf or {})
    elif cluster_mode in (None, "local"):
        _log.info("PySpark is not installed: the context is empty, which suits backend='local'")
    else:
        raise ImportError("to run on Spark, PySpark is needed: pip install 'stoker[spark]'")
    OrcaContext.runtime, OrcaContext.num_nodes = runtime, num_nodes
    return OrcaContext.session.sparkContext if OrcaContext.session is not None else None


def stop_orca_context() -> None:
    """Stop what `init_orca_context` started."""
    if OrcaContext.session is not None:
        OrcaContext.session.stop()
    if OrcaContext.runtime == "ray":
        import_module("ray").shutdown()
    OrcaContext.session, OrcaContext.runtime, OrcaContext.num_nodes = None, None, 1


def _start_spark(mode: str | None, cores: int, memory: str, conf: Mapping[str, str]) -> Any:
    from pyspark.sql import SparkSession

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    settings = {
        "spark.driver.memory": memory,
        "spark.executor.memory": memory,
        "spark.ui.showConsoleProgress": "false",
    }
    builder = SparkSession.builder.appName("orca")
    if mode == "local" or (mode is None and "PYSPARK_GATEWAY_PORT" not in os.environ):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        builder, settings["spark.ui.enabled"] = builder.master(f"local[{cores}]"), "false"
    elif mode not in (None, "spark-submit"):
        builder = builder.master(mode)
    session = builder.config(map={**settings, **conf}).getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    return session


def _start_ray(cores: int, address: str | None) -> None:
    own = {"num_cpus": cores, "include_dashboard": False, "_node_ip_address": "127.0.0.1"}
    options = own if address is None else {}
    import_module("ray").init(address=address or "local", logging_level="warning", **options)
