"""What every process of a job runs: one function, whose end is reported to the launcher."""

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
from typing import Any

from stoker.core.errors import RankFailed

FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)
"""What a launcher passes on to its processes; they hold it back until they can mind it."""


@dataclass(frozen=True)
class Report:
    """How the function ended: by returning, by an error, or by leaving with an exit code."""

    when: float
    """Seconds on the clock on the wall, which all processes share."""
    code: int = 0
    value: Any = None
    error: str = ""
    """The type of the error; empty where there was none."""
    text: str = ""
    """What a person is to read: the traceback."""
    follows: bool = False
    """Whether it failed only because another process did not answer."""


def packed(fn: Callable[..., Any], args: tuple[Any, ...]) -> bytes:
    """The function and its arguments as bytes for another process.

    Raises:
        ValueError: they cannot be sent; in words.
    """
    main = import_module("__main__")
    by_name = getattr(fn, "__module__", "") != "__main__" or hasattr(main, "__file__")
    try:
        if by_name:
            return pickle.dumps((fn, args))
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        reason = str(error)
    else:
        reason = "it was typed in, and stands in no file"
    name = getattr(fn, "__qualname__", repr(fn))
    try:
        import cloudpickle

        return bytes(cloudpickle.dumps((fn, args)))
    except ImportError:
        hint = "define it at the top of a module, or pip install cloudpickle"
    except Exception as error:
        reason, hint = str(error), "give it plain values, and let it make the rest itself"
    raise ValueError(f"{name} cannot be sent to another process ({reason}): {hint}")


class ImportPath:
    """Where this process looks for modules; the process that unpickles it looks there, too.

    It goes before what is to be found that way: workers of a cluster that share this machine, or
    its files, find what lies beside the user's script.
    """

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[list[str]]]:
        return _look_in_too, ([os.path.abspath(entry) for entry in sys.path],)


def _look_in_too(path: list[str]) -> ImportPath:
    sys.path += [entry for entry in path if entry not in sys.path]
    return ImportPath()


def main(pipe: Connection, job: bytes, environment: dict[str, str], _: object) -> None:
    """Run the function in this process, report how it ended, and leave with its exit code."""
    os.setpgid(0, 0)  # so that the launcher can end it together with what it has started
    os.environ.clear()
    os.environ.update(environment)
    threading.Thread(target=_end_with_the_launcher, daemon=True).start()
    report = _reported(job)
    try:
        message = pickle.dumps(report)
    except Exception as error:
        kind = type(report.value).__name__
        text = f"the function returned a {kind}, which cannot be sent back: {error}"
        report = Report(report.when, 1, error=type(error).__name__, text=text)
        message = pickle.dumps(report)
    with suppress(BrokenPipeError):
        pipe.send_bytes(message)
    atexit._run_exitfuncs()  # a forked process leaves without them
    raise SystemExit(report.code)


def called(fn: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    """Call the function in a process of a cluster; an error carries its report with it.

    There a process must not leave: what asks for it is an error, unless the exit code is 0.
    """
    try:
        return fn(*args)
    except BaseException as error:
        report = report_of(error)
        if isinstance(error, SystemExit):
            if report.code == 0:
                return None
            error = RankFailed(report.text or f"left with exit code {report.code}", report.code)
        setattr(error, REPORT, report)
        raise error from None


REPORT = "stoker_report"
"""The attribute of an error that holds how it is told."""


def _end_with_the_launcher() -> None:
    launcher = multiprocessing.parent_process()
    assert launcher is not None
    launcher.join()
    os.killpg(0, signal.SIGKILL)


def _reported(job: bytes) -> Report:
    try:
        import torch

        if "OMP_NUM_THREADS" not in os.environ:
            share = torch.get_num_threads() // int(os.environ["LOCAL_WORLD_SIZE"])
            torch.set_num_threads(max(1, share))
        signal.pthread_sigmask(signal.SIG_UNBLOCK, FORWARDED)
        fn, args = pickle.loads(job)
        return Report(time.time(), value=fn(*args))
    except BaseException as error:
        return report_of(error)


def report_of(error: BaseException) -> Report:
    """How an error is told: one with an ``exit_code`` in its own words, others by a traceback."""
    when, name = time.time(), type(error).__name__
    if isinstance(error, SystemExit):
        if error.code is None or isinstance(error.code, int):
            return Report(when, error.code or 0)
        return Report(when, 1, error=name, text=str(error.code))
    code = getattr(error, "exit_code", None)
    if code is not None:
        return Report(when, code, error=name, text=f"{error}")
    if isinstance(error, KeyboardInterrupt):
        return Report(when, 128 + signal.SIGINT, error=name)
    trace = error.__traceback__.tb_next if error.__traceback__ is not None else None
    text = "".join(traceback.format_exception(type(error), error, trace)).rstrip()
    return Report(when, 1, error=name, text=text, follows=_is_for_want_of_another(error))


def _is_for_want_of_another(error: BaseException | None) -> bool:
    from torch.distributed import DistError

    while error is not None:
        if isinstance(error, DistError) or "peer" in str(error):  # gloo has no type of its own
            return True
        error = error.__cause__ or error.__context__
    return False
