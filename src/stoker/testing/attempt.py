"""One attempt at a training, in processes of its own, one of which may be killed.

They are forked from this one, which has torch already (POSIX only). Random numbers are those of a
new process: where nobody seeds them, a first attempt has the same as the reference, which is what
it is compared with, and a later one has others, as life would have it.
"""

import faulthandler
import multiprocessing
import os
import random
import signal
import socket
import sys
import traceback
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from time import monotonic
from typing import NamedTuple, TypeAlias

import numpy as np
import torch

from stoker.config import ConfigError
from stoker.core import dist
from stoker.testing.kill import Doomed, Kill
from stoker.testing.watcher import watching

Make: TypeAlias = Callable[[Path], object]
"""Builds a training and runs it, in the run folder it is given."""

_TORCH_SEED = 67280421310721
"""What torch begins with in a new process."""

_LINES = 15
_SECONDS = 2.0
"""So long may the death of a process take to be seen, when others have seen it already."""


@dataclass(frozen=True)
class Failure:
    """An error of the training itself."""

    text: str
    faults: tuple[str, ...] = ()
    """What is wrong with the config, if it was that."""

    rank: int = 0
    """The process that had it."""


class _Child(NamedTuple):
    process: BaseProcess
    pipe: Connection


@dataclass(frozen=True)
class Attempt:
    """Where a training runs, and where its records and its words go."""

    make: Make
    run_dir: Path
    number: int
    threads: int | None = None
    processes: int = 1

    def records(self, rank: int = 0) -> Path:
        """The file of the records of a process."""
        return self._file(rank, "records")

    def log(self, rank: int = 0) -> Path:
        """The file of what a process printed."""
        return self._file(rank, "log")

    def _file(self, rank: int, suffix: str) -> Path:
        whose = f".rank{rank}" if self.processes > 1 else ""
        return self.run_dir.parent / f"attempt-{self.number:03}{whose}.{suffix}"

    def last_words(self, rank: int = 0) -> str:
        """The end of what a process printed."""
        log = self.log(rank)
        lines = log.read_text(errors="replace").splitlines() if log.exists() else []
        return "".join(f"\n  {line}" for line in lines[-_LINES:])

    def run(self, kill: Kill | None = None, limit: float | None = None) -> bool | Failure:
        """Run until it ends, is killed, or takes longer than ``limit`` seconds.

        A kill hits one process, and then the others: a job with a dead one is ended by whoever
        started it.

        Returns:
            whether it came to its end; or why it did not, other than by the kill.
        """
        self.run_dir.parent.mkdir(parents=True, exist_ok=True)
        address = _address() if self.processes > 1 else {}
        children: list[_Child] = []
        try:
            for rank in range(self.processes):
                own = kill if kill is not None and kill.rank == rank else None
                children.append(self._start(rank, own, address))
            return self._watch(children, kill, limit)
        finally:
            first = children[kill.rank : kill.rank + 1] if kill is not None else []
            for process, _ in [*first, *children]:
                process.kill()
            for process, pipe in children:
                process.join()
                pipe.close()

    def _start(self, rank: int, kill: Kill | None, address: dict[str, str]) -> _Child:
        context = multiprocessing.get_context("fork")
        ours, theirs = context.Pipe()
        process = context.Process(target=self._in_child, args=(rank, theirs, kill, address))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12: fork with threads
            process.start()
        theirs.close()
        return _Child(process, ours)

    def _watch(
        self, children: list[_Child], kill: Kill | None, limit: float | None
    ) -> bool | Failure:
        ends = monotonic() + limit if limit is not None else None
        silent = {child.pipe: rank for rank, child in enumerate(children)}
        while silent:
            ready = wait(list(silent), max(0.0, ends - monotonic()) if ends is not None else None)
            if not ready:
                return Failure(f"it did not end within {limit:.0f} s")
            for pipe in ready:
                rank = silent.pop(pipe)  # type: ignore[call-overload]
                said = _heard(children[rank])
                if said == "here" or (isinstance(said, Failure) and _died_in_save(children, kill)):
                    return False
                if isinstance(said, Failure):
                    whose = f"rank {rank}: " if self.processes > 1 else ""
                    return replace(said, text=whose + said.text, rank=rank)
        for rank, (process, _) in enumerate(children):
            process.join()
            if process.exitcode:
                return Failure(f"its process ended with exit code {process.exitcode}", rank=rank)
        return True

    def _in_child(
        self, rank: int, pipe: Connection, kill: Kill | None, address: dict[str, str]
    ) -> None:
        _speak_into(self.log(rank))
        _as_in_a_new_process(self.number, rank, self.threads)
        if self.processes > 1:
            os.environ |= _place(rank, self.processes) | address
        watcher = Doomed(
            self.records(rank),
            self.run_dir,
            kill,
            here=lambda: pipe.send("here"),
            wait=signal.pause,
        )
        said: str | Failure = "done"
        try:
            with watching(watcher):
                self.make(self.run_dir)
            dist.disconnect()
        except ConfigError as error:
            said = Failure(str(error), tuple(error.faults))
        except SystemExit as error:
            if error.code not in (None, 0):
                said = Failure(f"it left with exit code {error.code}")
        except BaseException as error:
            traceback.print_exc()
            said = Failure("".join(traceback.format_exception_only(error)).strip())
        if watcher.fit < 0 and said == "done":
            said = Failure("it trained nothing: no Trainer.fit was called")
        os.environ.pop("STOKER_KILL_AT", None)
        pipe.send(said)


def _heard(child: _Child) -> str | Failure:
    """What a child says, or how it ended without a word."""
    try:
        said: str | Failure = child.pipe.recv()
        return said
    except EOFError:
        child.process.join()
        return Failure(f"its process ended with exit code {child.process.exitcode}")


def _died_in_save(children: list[_Child], kill: Kill | None) -> bool:
    """Whether a kill in a save has happened, which others may notice before we do."""
    if kill is None or kill.kind != "save":
        return False
    process = children[kill.rank].process
    process.join(_SECONDS)
    return process.exitcode == -signal.SIGKILL


def _address() -> dict[str, str]:
    """Where processes on this machine meet."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1])}


def _place(rank: int, count: int) -> dict[str, str]:
    """A place among others, as launchers tell it."""
    of_all = {"RANK": str(rank), "WORLD_SIZE": str(count)}
    return of_all | {f"LOCAL_{name}": value for name, value in of_all.items()}


def _speak_into(log: Path) -> None:
    """Standard output and error go to a file, those of worker processes too."""
    sys.stdout.flush()
    sys.stderr.flush()
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    os.dup2(file, 1)
    os.dup2(file, 2)
    sys.stdout = os.fdopen(1, "w", buffering=1, closefd=False)
    sys.stderr = os.fdopen(2, "w", buffering=1, closefd=False)
    faulthandler.enable(sys.stderr)


def _as_in_a_new_process(number: int, rank: int, threads: int | None) -> None:
    os.environ.pop("STOKER_KILL_AT", None)
    random.seed(number + 1000 * rank)
    np.random.seed(number + 1000 * rank)
    torch.manual_seed(_TORCH_SEED)
    if threads is not None:
        torch.set_num_threads(threads)
