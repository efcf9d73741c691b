"""The context of a script: its Spark session or Ray cluster."""

import os
import sys
from collections.abc import Mapping
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Literal

from stoker.core.errors import did_you_mean
from stoker.core.log import get_logger

_log = get_logger()
_RUNTIMES = ("spark", "ray")
_OPTIONS = {
    "driver_memory": "spark.driver.memory",
    "driver_cores": "spark.driver.cores",
    "extra_python_lib": "spark.submit.pyFiles",
    "container_image": "spark.kubernetes.container.image",
}
"""Options of `init_orca_context` that are settings of Spark."""


class _Settings(type):
    def __setattr__(cls, name: str, value: Any) -> None:
        if not hasattr(cls, name):
            near = did_you_mean(name, [n for n in dir(cls) if n[:2] != "__"])
            raise AttributeError(f"OrcaContext has no setting {name!r}{near}")
        super().__setattr__(name, value)


class OrcaContext(metaclass=_Settings):
    """The session or cluster that `init_orca_context` started, and settings.

    With ``serialize_data_creator`` the workers of a machine call data creators one by one, with
    ``log_output`` Spark's warnings are shown. The others say how Orca moves data, and change no
    result here: pandas reads all files.
    """

    session: Any = None
    runtime: str | None = None
    num_nodes: int = 1
    cores: int = 2
    pandas_read_backend = "spark"
    _shard_size: int | None = None
    _eager_mode = True
    serialize_data_creator = False
    log_output = False

    @classmethod
    def get_spark_session(cls) -> Any:
        """Return the active Spark session."""
        session = cls.session
        if session is None and find_spec("pyspark") is not None:
            session = import_module("pyspark.sql").SparkSession.getActiveSession()
        if session is None:
            raise RuntimeError(
                "there is no Spark session: call init_orca_context(runtime='spark') first, with "
                "PySpark installed"
            )
        return session

    @classmethod
    def get_spark_context(cls) -> Any:
        """Return the active SparkContext."""
        return cls.get_spark_session().sparkContext


def init_orca_context(
    cluster_mode: str | None = None,
    runtime: Literal["spark", "ray"] = "spark",
    cores: int | str | None = None,
    memory: str = "2g",
    num_nodes: int = 1,
    init_ray_on_spark: bool = False,
    conf: Mapping[str, str] | None = None,
    address: str | None = None,
    master: str | None = None,
    spark_log_level: str | None = None,
    **options: Any,
) -> Any:
    """Start a Spark session, or join or start a Ray cluster; return the SparkContext or None.

    The ``cluster_mode`` is "local", "yarn-client", "k8s-client" or "standalone" with a ``master``,
    or what Spark takes as its master; "spark-submit", "bigdl-submit" and None leave that to the
    environment. An estimator counts ``workers_per_node`` on ``num_nodes``. ``address`` is of Ray,
    ``conf`` further settings of Spark; ``options`` are driver_memory, driver_cores,
    extra_python_lib and container_image. Without PySpark a context "local" starts nothing and is
    None: the backend "local" needs none. A context that is open is returned; one on the other of
    the two is opened next to it.
    """
    for name in options.keys() - _OPTIONS.keys():
        near = did_you_mean(name, _OPTIONS)
        raise TypeError(f"init_orca_context got {name}, which is no option{near}")
    if runtime not in _RUNTIMES:
        near = did_you_mean(str(runtime), _RUNTIMES)
        raise ValueError(f"runtime is 'spark' or 'ray', got {runtime!r}{near}")
    count = int(cores) if cores not in (None, "*") else (os.cpu_count() or 2)
    if runtime == OrcaContext.runtime:
        _log.warning(f"a context is open already, on {runtime}: it is used as it is")
    elif runtime == "ray":
        if conf is not None or options:
            what = "conf" if conf is not None else next(iter(options))
            raise ValueError(f"{what} is about Spark; on Ray give an address, or nothing")
        _start_ray(count, address)
    elif address is not None:
        raise ValueError("address is about Ray; on Spark the cluster_mode is the master")
    elif find_spec("pyspark") is not None:
        settings = {
            "spark.driver.memory": memory,
            "spark.executor.memory": memory,
            "spark.ui.showConsoleProgress": "false",
            **{_OPTIONS[name]: str(value) for name, value in options.items()},
        }
        found = _master(cluster_mode, count, num_nodes, settings, master)
        level = spark_log_level or ("WARN" if OrcaContext.log_output else "OFF")
        OrcaContext.session = _start_spark(found, settings | dict(conf or {}), level)
    elif cluster_mode in (None, "local"):
        _log.info("PySpark is not installed: the context is empty, which suits backend='local'")
    else:
        raise ImportError("to run on Spark, PySpark is needed: pip install 'stoker[spark]'")
    OrcaContext.runtime, OrcaContext.num_nodes, OrcaContext.cores = runtime, num_nodes, count
    if init_ray_on_spark:
        start_ray_on_spark(count)
    return OrcaContext.session.sparkContext if OrcaContext.session is not None else None


def init_nncontext(*_: Any, **options: Any) -> Any:
    """Return the active SparkContext, or that of a local session; ``conf`` has settings."""
    opened = OrcaContext.session is not None
    return OrcaContext.get_spark_context() if opened else init_orca_context("local", **options)


def stop_orca_context() -> None:
    """Stop what `init_orca_context` started."""
    if OrcaContext.session is not None:
        OrcaContext.session.stop()
    if OrcaContext.runtime is not None and "ray" in sys.modules:
        import_module("ray").shutdown()
    OrcaContext.session, OrcaContext.runtime, OrcaContext.num_nodes = None, None, 1


def _master(
    mode: str | None, cores: int, num_nodes: int, settings: dict[str, str], given: str | None
) -> str | None:
    """Return Spark's master, and set how many executors it starts; None leaves it as it is."""
    mode = mode.lower() if mode is not None and "://" not in mode else mode
    if mode in ("spark-submit", "bigdl-submit"):
        return None
    if mode == "local" or (mode is None and "PYSPARK_GATEWAY_PORT" not in os.environ):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        settings["spark.ui.enabled"] = "false"
        return f"local[{cores}]"
    if mode is None:
        return None
    if mode in ("yarn-cluster", "k8s-cluster"):
        raise ValueError(
            f"cluster_mode={mode!r} runs the script itself on the cluster: start it with "
            f"spark-submit --deploy-mode cluster, and give cluster_mode='spark-submit'"
        )
    settings |= {"spark.executor.instances": str(num_nodes), "spark.executor.cores": str(cores)}
    if mode in ("k8s-client", "standalone") and given is None:
        raise ValueError(f"cluster_mode={mode!r} needs the master: init_orca_context(master=…)")
    return given or ("yarn" if mode == "yarn-client" else mode)


def _start_spark(master: str | None, settings: Mapping[str, str], level: str) -> Any:
    from pyspark.sql import SparkSession

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName("orca")
    builder = builder if master is None else builder.master(master)
    session = builder.config(map=dict(settings)).getOrCreate()
    session.sparkContext.setLogLevel(level)
    return session


def start_ray_on_spark(workers: int) -> None:
    """Start Ray on this machine next to an open local Spark session, unless it runs.

    Raises:
        ValueError: Spark runs on other machines, and Ray would not.
    """
    if OrcaContext.runtime != "spark" or _ray_runs():
        return
    master = OrcaContext.session.sparkContext.master if OrcaContext.session else "local"
    if not master.startswith("local"):
        raise ValueError(
            f"Spark runs on {master!r}, and Ray is not started on its executors: use "
            "backend='spark', or start a Ray cluster and call "
            "init_orca_context(runtime='ray', address=…)"
        )
    _start_ray(max(workers, OrcaContext.cores), None)


def _ray_runs() -> bool:
    return "ray" in sys.modules and bool(import_module("ray").is_initialized())


def _start_ray(cores: int, address: str | None) -> None:
    if _ray_runs():  # next to Spark
        return
    own = {"num_cpus": cores, "include_dashboard": False, "_node_ip_address": "127.0.0.1"}
    options = own if address is None else {}
    import_module("ray").init(address=address or "local", logging_level="warning", **options)
