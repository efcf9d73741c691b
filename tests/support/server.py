"""The fork server of a test run: processes that need no seconds to import torch and Stoker.

The ranks of launchers and of `support.pool` are forked from it. `start` runs ``python ARGUMENTS``
in such a process, for tests whose facts do not depend on how an interpreter starts.
"""

import atexit
import multiprocessing
import os
import runpy
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Mapping, Sequence
from multiprocessing import forkserver, resource_tracker
from multiprocessing.reduction import DupFd
from pathlib import Path
from types import ModuleType
from typing import Any

CONTEXT = multiprocessing.get_context("forkserver")
TESTS = str(Path(__file__).parents[1])
HASH_SEED = "17"  # sets and hashes of texts are others than in the test process


def ensure_server() -> None:
    """Start the server, unless it runs."""
    if forkserver._forkserver._forkserver_pid is not None:
        return
    CONTEXT.set_forkserver_preload(["support.preload"])
    resource_tracker.ensure_running()
    before = dict(os.environ)
    path = os.pathsep.join(filter(None, [TESTS, before.get("PYTHONPATH")]))
    os.environ.update(PYTHONPATH=path, PYTHONHASHSEED=HASH_SEED)
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    try:
        forkserver.ensure_running()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        for name in ("PYTHONPATH", "PYTHONHASHSEED"):
            os.environ.pop(name)
            if name in before:
                os.environ[name] = before[name]


class Python:
    """``python ARGUMENTS``, with the methods of `subprocess.Popen` that tests use.

    It leads its own session, and what it prints is captured as text.
    """

    def __init__(
        self,
        *arguments: str,
        cwd: str | os.PathLike[str] | None = None,
        env: Mapping[str, str] | None = None,
    ) -> None:
        ensure_server()
        sys.audit("support.pool.run")
        self.args = arguments
        self._streams = [os.pipe(), os.pipe()]
        ends = _Ends([write for _, write in self._streams])
        where = os.fspath(cwd or os.getcwd())
        args = (arguments, where, dict(os.environ if env is None else env), ends)
        self._process = CONTEXT.Process(target=_main, args=args)
        self._process.start()
        self._texts = ["", ""]
        self._readers = []
        for number, (read, write) in enumerate(self._streams):
            os.close(write)
            reader = threading.Thread(target=self._read, args=(number, read), daemon=True)
            reader.start()
            self._readers.append(reader)

    def _read(self, number: int, end: int) -> None:
        with open(end, encoding="utf-8", errors="replace") as stream:
            self._texts[number] = stream.read()

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def poll(self) -> int | None:
        return self._process.exitcode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        if self.returncode is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
        return self.returncode

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """Return what it printed to its two streams, once it has ended."""
        self.wait(timeout)
        for reader in self._readers:  # a process that it has started may still hold the stream
            reader.join(timeout)
        out, err = self._texts
        return out, err


def run(
    *arguments: str,
    cwd: str | os.PathLike[str] | None = None,
    env: Mapping[str, str] | None = None,
    check: bool = False,
) -> "subprocess.CompletedProcess[str]":
    """Run ``python ARGUMENTS`` to its end."""
    process = Python(*arguments, cwd=cwd, env=env)
    out, err = process.communicate()
    done = subprocess.CompletedProcess(arguments, process.returncode or 0, out, err)
    if check:
        assert done.returncode == 0, err
    return done


class _Ends:
    """Pickles to file descriptors of the process that it is sent to."""

    def __init__(self, numbers: Sequence[int]) -> None:
        self.numbers = numbers

    def __reduce__(self) -> tuple[Any, ...]:
        return _received, tuple(DupFd(number) for number in self.numbers)


def _received(*ends: Any) -> list[int]:
    return [end.detach() for end in ends]


def _main(arguments: tuple[str, ...], cwd: str, env: dict[str, str], ends: list[int]) -> None:
    """Become ``python ARGUMENTS``."""
    os.setsid()
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(env)
    _connect(*ends)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    code = _exit_code(arguments)
    try:
        threading._shutdown()
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        if code == -signal.SIGINT:
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGINT)
        os._exit(code)


def _connect(out: int, err: int) -> None:
    for number, end in ((1, out), (2, err)):
        os.dup2(end, number)
        os.close(end)
    sys.stdout = sys.__stdout__ = os.fdopen(1, "w", closefd=False)
    sys.stderr = sys.__stderr__ = os.fdopen(2, "w", buffering=1, closefd=False)


def _exit_code(arguments: tuple[str, ...]) -> int:
    try:
        _run(arguments)
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return end.code or 0
        print(end.code, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        traceback.print_exc()
        return -signal.SIGINT
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def _run(arguments: tuple[str, ...]) -> None:
    kind, rest = arguments[0], list(arguments[1:])
    given = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    sys.path[:0] = [entry for entry in given if entry]
    if kind == "-m":
        sys.argv = rest
        sys.path.insert(0, os.getcwd())
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    elif kind == "-c":
        sys.argv = ["-c", *rest[1:]]
        sys.path.insert(0, "")
        main = sys.modules["__main__"] = ModuleType("__main__")
        exec(compile(rest[0], "<string>", "exec"), vars(main))
    else:
        sys.argv = list(arguments)
        sys.path.insert(0, os.path.dirname(os.path.abspath(kind)))
        runpy.run_path(kind, run_name="__main__")
