"""Processes on gloo that tests share: started once, given one task after another."""

import os
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from typing import Any

import torch
import torch.distributed as dist

from support.server import CONTEXT, ensure_server

SECONDS = 600.0


@cache
def pool() -> "Pool":
    """The pool of this test session."""
    return Pool()


class Pool:
    """Runs a function in several connected processes.

    >>> pool().run(2, train_a_little, "some", arguments)   # what rank 0 and rank 1 returned

    The function is found again by its module and name, so it stands at the top of a module that
    can be imported from ``tests``; what it takes and returns is pickled.
    """

    def __init__(self) -> None:
        self._workers: list[tuple[Any, Any]] = []

    def run(self, count: int, function: Callable[..., Any], *args: Any) -> list[Any]:
        """What each of ``count`` processes returned, by rank; the first error is raised."""
        sys.audit("support.pool.run")  # its processes may be there already
        while len(self._workers) < count:
            self._workers.append(_start())
        with tempfile.TemporaryDirectory() as folder:
            for rank, (_, pipe) in enumerate(self._workers[:count]):
                name = (function.__module__, function.__qualname__)
                pipe.send((rank, count, os.path.join(folder, "store"), name, args))
            found = [self._answer(rank) for rank in range(count)]
        errors = [text for ok, text in found if not ok]
        if errors:
            self.close()
            raise AssertionError("\n".join(errors))
        return [value for _, value in found]

    def close(self) -> None:
        """End all processes; the next run starts new ones."""
        for process, pipe in self._workers:
            pipe.close()
            process.kill()
            process.join()
        self._workers.clear()

    def _answer(self, rank: int) -> tuple[bool, Any]:
        process, pipe = self._workers[rank]
        try:
            if pipe.poll(SECONDS):
                answer: tuple[bool, Any] = pipe.recv()
                return answer
            return False, f"rank {rank} gave no answer within {SECONDS:g} s"
        except EOFError:
            process.join()
            return False, f"rank {rank} died with exit code {process.exitcode}"


def _start() -> tuple[Any, Any]:
    ensure_server()
    ours, theirs = CONTEXT.Pipe()
    process = CONTEXT.Process(target=_work, args=(theirs,), daemon=True)
    process.start()
    theirs.close()
    return process, ours


def _work(pipe: Any) -> None:
    torch.set_num_threads(1)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])  # a server that launchers started blocks some
    signal.signal(signal.SIGINT, signal.default_int_handler)
    while True:
        try:
            rank, count, store, (module, name), args = pipe.recv()
        except EOFError:
            return
        try:
            with connected(rank, count, store):
                function = getattr(import_module(module), name)
                answer = (True, function(*args))
        except BaseException:
            answer = (False, f"rank {rank}: {traceback.format_exc()}")
        pipe.send(answer)


@contextmanager
def connected(rank: int, count: int, store: str) -> Iterator[None]:
    """Within it this process is one of several."""
    shared = dist.FileStore(store, count)
    dist.init_process_group("gloo", store=shared, rank=rank, world_size=count)
    try:
        yield
        if dist.is_initialized():  # a task may have left
            dist.barrier()
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()
