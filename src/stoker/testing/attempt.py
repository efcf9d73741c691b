"""One attempt at a training, in a process of its own that may be killed.

It is forked from this one, which has torch already (POSIX only). Random numbers are those of a new
process: where nobody seeds them, a first attempt has the same as the reference, which is what it
is compared with, and a later one has others, as life would have it.
"""

import faulthandler
import multiprocessing
import os
import random
import signal
import sys
import traceback
import warnings
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch

from stoker.config import ConfigError
from stoker.testing.kill import Doomed, Kill
from stoker.testing.watch import watching

Make: TypeAlias = Callable[[Path], object]
"""Builds a training and runs it, in the run folder it is given."""

_TORCH_SEED = 67280421310721
"""What torch begins with in a new process."""


_LINES = 15


@dataclass(frozen=True)
class Failure:
    """An error of the training itself."""

    text: str
    faults: tuple[str, ...] = ()
    """What is wrong with the config, if it was that."""


@dataclass(frozen=True)
class Attempt:
    """Where a training runs, and where its records and its words go."""

    make: Make
    run_dir: Path
    number: int
    threads: int | None = None

    @property
    def records(self) -> Path:
        """The file of its records."""
        return self.run_dir.parent / f"attempt-{self.number:03}.records"

    @property
    def log(self) -> Path:
        """The file of what it printed."""
        return self.run_dir.parent / f"attempt-{self.number:03}.log"

    @property
    def last_words(self) -> str:
        """The end of what it printed."""
        lines = self.log.read_text(errors="replace").splitlines() if self.log.exists() else []
        return "".join(f"\n  {line}" for line in lines[-_LINES:])

    def run(self, kill: Kill | None = None, limit: float | None = None) -> bool | Failure:
        """Run until it ends, is killed, or takes longer than ``limit`` seconds.

        Returns:
            whether it came to its end; or why it did not, other than by the kill.
        """
        self.run_dir.parent.mkdir(parents=True, exist_ok=True)
        context = multiprocessing.get_context("fork")
        ours, theirs = context.Pipe()
        process = context.Process(target=self._in_child, args=(theirs, kill))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12: fork with threads
            process.start()
        theirs.close()
        try:
            said = self._hear(ours, limit)
            if said == "here" and process.pid is not None:
                os.kill(process.pid, signal.SIGKILL)
            if said is not None:
                process.join()
        finally:
            if process.is_alive():
                process.kill()
            process.join()
            ours.close()
        return self._ended(said, process.exitcode, kill, limit)

    def _hear(self, pipe: Connection, limit: float | None) -> Any:
        """What the child says; None if it says nothing any more, or nothing in time."""
        with suppress(EOFError):
            if pipe.poll(limit):
                return pipe.recv()
        return None

    def _ended(
        self, said: Any, code: int | None, kill: Kill | None, limit: float | None
    ) -> bool | Failure:
        if isinstance(said, Failure):
            return said
        if said == "done" and code == 0:
            return True
        in_save = kill is not None and kill.kind == "save" and code == -signal.SIGKILL
        if said == "here" or (in_save and said is None):
            return False
        if code == -signal.SIGKILL and limit is not None:
            return Failure(f"it did not end within {limit:.0f} s")
        return Failure(f"its process ended with exit code {code}")

    def _in_child(self, pipe: Connection, kill: Kill | None) -> None:
        _speak_into(self.log)
        _as_in_a_new_process(self.number, self.threads)
        watcher = Doomed(
            self.records, self.run_dir, kill, here=lambda: pipe.send("here"), wait=signal.pause
        )
        said: str | Failure = "done"
        try:
            with watching(watcher):
                self.make(self.run_dir)
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


def _as_in_a_new_process(number: int, threads: int | None) -> None:
    os.environ.pop("STOKER_KILL_AT", None)
    random.seed(number)
    np.random.seed(number)
    torch.manual_seed(_TORCH_SEED)
    if threads is not None:
        torch.set_num_threads(threads)
