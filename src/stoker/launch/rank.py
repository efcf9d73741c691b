"""The main function of a rank: run the job and send its result to the launcher."""

import atexit
import multiprocessing
import os
import pickle
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from stoker.core.errors import RankFailed

FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)
"""The signals that a launcher forwards. Ranks block them until they can handle them."""


@dataclass(frozen=True)
class RankResult:
    """How the function ended: with a value, an error or an exit code."""

    time: float
    """Wall-clock time, which is comparable between processes."""
    code: int = 0
    value: Any = None
    error: str = ""
    """The type of the error; empty if there was none."""
    text: str = ""
    """The message to print, usually a traceback."""
    secondary: bool = False
    """Whether it failed only because it lost another process."""
    lost_worker: bool = False
    """Whether it failed because a worker of a `DataLoader` was killed."""

    def summary(self, rank: int) -> str:
        """Return one line about the failure of ``rank``."""
        how = f"failed with {self.error}" if self.error else f"exited with code {self.code}"
        return f"rank {rank} {how}"


def serialize(fn: Callable[..., Any], args: tuple[Any, ...]) -> bytes:
    """Pickle the function and its arguments for another process.

    Raises:
        ValueError: they cannot be pickled; the message says why and what to do.
    """
    main = import_module("__main__")
    by_name = getattr(fn, "__module__", "") != "__main__" or hasattr(main, "__file__")
    try:
        if by_name:
            return pickle.dumps((fn, args))
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        reason = str(error)
    else:
        reason = "it was defined interactively, not in a file"
    name = getattr(fn, "__qualname__", repr(fn))
    try:
        import cloudpickle

        return bytes(cloudpickle.dumps((fn, args)))
    except ImportError:
        hint = "define it at the top level of a module, or pip install cloudpickle"
    except Exception as error:
        reason, hint = str(error), "pass plain values and create the rest inside the function"
    raise ValueError(f"{name} cannot be sent to another process ({reason}): {hint}")


class ImportPath:
    """Unpickling it puts this process's ``sys.path`` before that of the other process.

    Send it before the function, so that workers that share this machine or its files import the
    same modules: also one next to the user's script that has the name of an installed one. An
    import finder with an attribute ``on_workers`` is installed there too.
    """

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[list[str], list[Any]]]:
        finders = [one for one in sys.meta_path if getattr(one, "on_workers", False)]
        return _extend_path, ([os.path.abspath(entry) for entry in sys.path], finders)


def _extend_path(path: list[str], finders: list[Any]) -> ImportPath:
    sys.path[:] = dict.fromkeys([*path, *sys.path])
    for finder in finders:
        if not any(type(one) is type(finder) for one in sys.meta_path):
            sys.meta_path.insert(0, finder)
    return ImportPath()


def main(pipe: Connection, job: bytes, environment: dict[str, str], _: object) -> None:
    """Run the function in this process, send its result and exit with its exit code."""
    os.setpgid(0, 0)  # so that the launcher can kill it together with its children
    os.environ.clear()
    os.environ.update(environment)
    threading.Thread(target=_exit_with_launcher, daemon=True).start()
    result = _run_job(job)
    try:
        message = pickle.dumps(result)
    except Exception as error:
        kind = type(result.value).__name__
        text = f"the function returned a {kind}, which cannot be pickled: {error}"
        result = RankResult(result.time, 1, error=type(error).__name__, text=text)
        message = pickle.dumps(result)
    with suppress(BrokenPipeError):
        pipe.send_bytes(message)
    atexit._run_exitfuncs()  # a forked process skips them
    raise SystemExit(result.code)


def call_on_cluster(fn: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    """Call the function in a worker of a cluster; attach a `RankResult` to any error.

    A worker must not exit: ``SystemExit`` becomes an error unless its code is 0.
    """
    try:
        return fn(*args)
    except BaseException as error:
        result = result_of(error)
        if isinstance(error, SystemExit):
            if result.code == 0:
                return None
            error = RankFailed(result.text or f"exited with code {result.code}", result.code)
        setattr(error, RESULT_ATTRIBUTE, result)
        raise error from None


RESULT_ATTRIBUTE = "stoker_result"
"""The attribute of an error that holds its `RankResult`."""


def _exit_with_launcher() -> None:
    launcher = multiprocessing.parent_process()
    assert launcher is not None
    launcher.join()
    for pid in _siblings():
        with suppress(OSError):
            os.kill(pid, signal.SIGCONT)  # a rank that is stopped does not notice by itself
    os.killpg(0, signal.SIGKILL)


def _siblings() -> list[int]:
    """Return the processes that the fork server has started, as far as known."""
    with suppress(OSError):
        server = os.getppid()
        children = Path(f"/proc/{server}/task/{server}/children").read_text()
        return [int(pid) for pid in children.split()]
    return []


def _run_job(job: bytes) -> RankResult:
    try:
        import torch

        if "OMP_NUM_THREADS" not in os.environ:
            threads = torch.get_num_threads() // int(os.environ["LOCAL_WORLD_SIZE"])
            torch.set_num_threads(max(1, threads))
        signal.pthread_sigmask(signal.SIG_UNBLOCK, FORWARDED)
        fn, args = pickle.loads(job)
        return RankResult(time.time(), value=fn(*args))
    except BaseException as error:
        return result_of(error)


def result_of(error: BaseException) -> RankResult:
    """Return the result for an error: its message if it has an ``exit_code``, else a traceback."""
    now, name = time.time(), type(error).__name__
    if isinstance(error, SystemExit):
        if error.code is None or isinstance(error.code, int):
            return RankResult(now, error.code or 0)
        return RankResult(now, 1, error=name, text=str(error.code))
    code = getattr(error, "exit_code", None)
    if code is not None:
        return RankResult(now, code, error=name, text=f"{error}")
    if isinstance(error, KeyboardInterrupt):
        return RankResult(now, 128 + signal.SIGINT, error=name)
    from stoker.core import dist

    trace = error.__traceback__.tb_next if error.__traceback__ is not None else None
    text = "".join(traceback.format_exception(type(error), error, trace)).rstrip()
    return RankResult(now, 1, None, name, text, dist.lost_peer(error), _lost_worker(error))


def _lost_worker(error: BaseException | None) -> bool:
    """Return whether torch reports a killed worker, or cannot receive what it had sent."""
    while error is not None:
        if isinstance(error, RuntimeError) and str(error).startswith("DataLoader worker (pid"):
            return True
        frames = (frame.f_code.co_qualname for frame, _ in traceback.walk_tb(error.__traceback__))
        receives = any(name.endswith("DataLoaderIter._try_get_data") for name in frames)
        if receives and isinstance(error, OSError | EOFError):
            return True
        error = error.__cause__ or error.__context__
    return False
