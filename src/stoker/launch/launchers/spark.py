"""Processes on Spark, through its TorchDistributor."""

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
from tempfile import TemporaryFile
from typing import Any

from stoker.core.errors import RankFailed
from stoker.launch.rank import RESULT_ATTRIBUTE, ImportPath, RankResult, call_on_cluster

_USAGE = 2  # exit code of invalid input: a restart would fail again


def launch(
    fn: Callable[..., Any],
    args: tuple[Any, ...],
    *,
    workers: int = 1,
    address: str | None = None,
    max_restarts: int = 0,
) -> Any:
    """Run the function in the tasks of a barrier stage and return the value of rank 0."""
    try:
        from pyspark.ml.torch.distributor import TorchDistributor
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise ImportError(
            f"the 'spark' launcher needs PySpark ({error}): pip install 'stoker[spark]'"
        ) from error
    with _session(SparkSession, address, workers) as spark:
        host = spark.conf.get("spark.driver.host")
        gpus = int(spark.conf.get("spark.task.resource.gpu.amount", "0") or 0) > 0
        for attempt in range(max_restarts + 1):
            distributor = TorchDistributor(workers, local_mode=False, use_gpu=gpus)
            distributor.logger.setLevel("WARNING")
            with _ResultServer() as results:
                try:
                    driver = host, results.port
                    return distributor.run(_run_task, ImportPath(), fn, args, driver, results.key)
                except Exception as error:
                    if not _is_failure(error):
                        raise
                    summary, code = results.first_failure(workers, error)
            if code == _USAGE or attempt == max_restarts:
                break
            restart = f"restarting ({attempt + 1} of {max_restarts})"
            print(f"{summary}; {restart}", file=sys.stderr, flush=True)
    used_up = f"; all restarts used ({max_restarts} of {max_restarts})" if max_restarts else ""
    raise RankFailed(summary + ("" if code == _USAGE else used_up), code)


_QUIET = {"LOGLEVEL": "CRITICAL", "TORCH_CPP_LOG_LEVEL": "ERROR"}
"""For tasks: torchrun complains if that of rank 0 exits a moment earlier; failures are sent."""


def _is_failure(error: Exception) -> bool:
    """Return whether a task failed, rather than Spark's own call."""
    return "barrier" in str(error) or "TorchDistributor failed" in str(error)


def _run_task(
    _: ImportPath,
    fn: Callable[..., Any],
    args: tuple[Any, ...],
    driver: tuple[str, int],
    key: bytes,
) -> Any:
    """Run the function in a task and send any error to the driver, which Spark does not do."""
    try:
        return call_on_cluster(fn, args)
    except BaseException as error:
        result: RankResult = getattr(error, RESULT_ATTRIBUTE)
        send_result(result, driver, key)
        raise SystemExit(result.code) from None


def send_result(result: RankResult, driver: tuple[str, int], key: bytes) -> None:
    """Send the result of this process to the driver, if it can be reached."""
    message = int(os.environ["RANK"]), asdict(result)
    with suppress(OSError, AuthenticationError), Client(driver, authkey=key) as pipe:
        pipe.send_bytes(json.dumps(message).encode())


class _ResultServer:
    """Receives the results of failed tasks of one attempt on a background thread."""

    def __init__(self) -> None:
        self.key = secrets.token_bytes(32)
        self._listener = Listener(("", 0), authkey=self.key)
        self.port: int = self._listener.address[1]
        self._found: dict[int, RankResult] = {}
        self._open = True

    def __enter__(self) -> "_ResultServer":
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
                rank, result = json.loads(pipe.recv_bytes())
                self._found[rank] = RankResult(**result)

    def first_failure(self, workers: int, error: Exception) -> tuple[str, int]:
        """Print the first failure and return its summary and exit code.

        A task that was killed sent nothing, while those that lost it did. Spark may end these
        before they can: then the one that died is among those named. If no task has sent anything,
        such as one that cannot import the function's module, only Spark's error has the reason.
        """
        if not self._found:
            print(str(error).partition("\n\tat ")[0], file=sys.stderr, flush=True)
        causes = {rank: result for rank, result in self._found.items() if not result.secondary}
        silent = [rank for rank in range(workers) if rank not in self._found]
        if not causes and silent:
            return f"rank {' or '.join(map(str, silent))} died", 1
        found = causes or self._found
        rank = min(found, key=lambda rank: found[rank].time)
        result = found[rank]
        if result.text:
            print(result.text, file=sys.stderr, flush=True)
        return result.summary(rank), result.code


@contextmanager
def _session(sessions: Any, address: str | None, workers: int) -> Iterator[Any]:
    """Yield the active session, one on the master at ``address``, or one on this machine."""
    active = sessions.getActiveSession()
    if active is not None:
        yield active
        return
    _check_java()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = sessions.builder.appName("stoker").config("spark.ui.showConsoleProgress", "false")
    for name, level in _QUIET.items():
        builder = builder.config(f"spark.executorEnv.{name}", os.environ.get(name, level))
    if address is not None:
        builder = builder.master(address)
    elif "PYSPARK_GATEWAY_PORT" not in os.environ:  # else spark-submit has set the master
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        builder = builder.master(f"local[{workers}]").config("spark.ui.enabled", "false")
    with _hide_output():
        session = builder.getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    try:
        yield session
    finally:
        session.stop()


@contextmanager
def _hide_output() -> Iterator[None]:
    """Hide what the Java process that starts inside prints, unless it fails to start.

    It prints warnings before its log level can be set, and lines of ranks a second time.
    """
    streams = (1, 2)
    with TemporaryFile() as file:
        saved = [os.dup(stream) for stream in streams]
        try:
            sys.stdout.flush()
            sys.stderr.flush()
            for stream in streams:
                os.dup2(file.fileno(), stream)
            yield
        except BaseException:
            file.seek(0)
            os.write(saved[1], file.read())
            raise
        finally:
            for stream, before in zip(streams, saved, strict=True):
                os.dup2(before, stream)
                os.close(before)


def _check_java() -> None:
    """Check for a Java runtime, because Spark's own error does not mention it.

    Raises:
        ImportError: there is none.
    """
    if "JAVA_HOME" in os.environ or shutil.which("java"):
        return
    raise ImportError(
        "Spark needs a Java runtime, 17 or newer, but JAVA_HOME is not set and there is no java on "
        "the PATH: on Debian, apt-get install openjdk-17-jre-headless"
    )
