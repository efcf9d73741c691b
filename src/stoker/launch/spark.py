"""The processes of a job on Spark, through its TorchDistributor."""

import json
import os
import secrets
import shutil
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client, Listener
from typing import Any

from stoker.core.errors import RankFailed
from stoker.launch.rank import REPORT, ImportPath, Report, called

_REFUSED = 2


def run_on_spark(
    fn: Callable[..., Any],
    args: tuple[Any, ...],
    workers: int,
    address: str | None,
    max_restarts: int,
) -> Any:
    """Run the function in the tasks of a barrier stage; what rank 0 returned."""
    try:
        from pyspark.ml.torch.distributor import TorchDistributor
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise ImportError(
            f"to run on Spark, PySpark is needed ({error}): pip install 'stoker[spark]'"
        ) from error
    with _session(SparkSession, address, workers) as spark, _Reports() as reports:
        host = spark.conf.get("spark.driver.host")
        gpus = int(spark.conf.get("spark.task.resource.gpu.amount", "0") or 0) > 0
        for attempt in range(max_restarts + 1):
            reports.clear()
            distributor = TorchDistributor(workers, local_mode=False, use_gpu=gpus)
            try:
                driver = host, reports.port
                return distributor.run(_work, ImportPath(), fn, args, driver, reports.key)
            except Exception as error:
                if not _is_failure(error):
                    raise
                words, code = reports.told(workers)
            if code == _REFUSED or attempt == max_restarts:
                break
            again = f"starting again (restart {attempt + 1} of {max_restarts})"
            print(f"{words}; {again}", file=sys.stderr, flush=True)
    used_up = f"; {max_restarts} of {max_restarts} restarts are used up" if max_restarts else ""
    raise RankFailed(words + ("" if code == _REFUSED else used_up), code)


def _is_failure(error: Exception) -> bool:
    """Whether a task failed, and not the request itself."""
    return "barrier" in str(error) or "TorchDistributor failed" in str(error)


def _work(
    _: ImportPath,
    fn: Callable[..., Any],
    args: tuple[Any, ...],
    driver: tuple[str, int],
    key: bytes,
) -> Any:
    """What runs in each process; an error is told to the driver, which Spark does not do."""
    try:
        return called(fn, args)
    except BaseException as error:
        report: Report = getattr(error, REPORT)
        tell(report, driver, key)
        raise SystemExit(report.code) from None


def tell(report: Report, driver: tuple[str, int], key: bytes) -> None:
    """Tell the driver how this process failed, if it can be reached."""
    message = int(os.environ["RANK"]), asdict(report)
    with suppress(OSError), Client(driver, authkey=key) as pipe:
        pipe.send_bytes(json.dumps(message).encode())


class _Reports:
    """What processes tell of their failures, taken in beside the job."""

    def __init__(self) -> None:
        self.key = secrets.token_bytes(32)
        self._listener = Listener(("", 0), authkey=self.key)
        self.port: int = self._listener.address[1]
        self._found: dict[int, Report] = {}
        self._open = True

    def __enter__(self) -> "_Reports":
        threading.Thread(target=self._listen, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._open = False
        with suppress(OSError), Client(("localhost", self.port), authkey=self.key):
            pass  # wakes the listener
        self._listener.close()

    def _listen(self) -> None:
        while self._open:
            with (
                suppress(OSError, EOFError, AuthenticationError),
                self._listener.accept() as pipe,
            ):
                rank, report = json.loads(pipe.recv_bytes())
                self._found[rank] = Report(**report)

    def clear(self) -> None:
        """Forget an attempt."""
        self._found.clear()

    def told(self, workers: int) -> tuple[str, int]:
        """Print the first failure; its words and exit code.

        A process that was killed told nothing, while those that failed for want of it did.
        """
        causes = {rank: report for rank, report in self._found.items() if not report.follows}
        silent = [rank for rank in range(workers) if rank not in self._found]
        if not causes and silent:
            return f"rank {silent[0]} died", 1
        found = causes or self._found
        rank = min(found, key=lambda rank: found[rank].when)
        report = found[rank]
        if report.text:
            print(report.text, file=sys.stderr, flush=True)
        how = (
            f"failed with {report.error}" if report.error else f"left with exit code {report.code}"
        )
        return f"rank {rank} {how}", report.code


@contextmanager
def _session(sessions: Any, address: str | None, workers: int) -> Iterator[Any]:
    """The session in progress, one on the master that was named, or one on this machine."""
    active = sessions.getActiveSession()
    if active is not None:
        yield active
        return
    _find_java()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = sessions.builder.appName("stoker").config("spark.ui.showConsoleProgress", "false")
    if address is not None:
        builder = builder.master(address)
    elif "PYSPARK_GATEWAY_PORT" not in os.environ:  # else spark-submit has said where
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        builder = builder.master(f"local[{workers}]").config("spark.ui.enabled", "false")
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    try:
        yield session
    finally:
        session.stop()


def _find_java() -> None:
    """See that there is a Java runtime, without which Spark only says that something exited.

    Raises:
        ImportError: there is none.
    """
    if "JAVA_HOME" in os.environ or shutil.which("java"):
        return
    raise ImportError(
        "Spark needs a Java runtime, 17 or newer, and neither JAVA_HOME is set nor is there a java "
        "on the PATH: on Debian, apt-get install openjdk-17-jre-headless"
    )
