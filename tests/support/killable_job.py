"""The training of `killable_run` in two processes, each of which can be killed."""

import multiprocessing
import os
import signal
import socket
from contextlib import suppress
from importlib import import_module
from multiprocessing.connection import wait
from pathlib import Path

import torch

from stoker.core import dist
from support.killable_run import Halt, result, train

RANKS = (0, 1)
SECONDS = 600


def _child(rank, port, folder, pipe, where, how):
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(len(RANKS)), "LOCAL_RANK": str(rank)}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    os.environ.pop("STOKER_KILL_AT", None)
    kind, point, doomed = where or ("", "", None)
    if kind == "save" and doomed == rank:
        os.environ["STOKER_KILL_AT"] = point
    halts = kind and kind != "save"  # all have the hook, one stands still
    halt = [Halt(kind, point if doomed == rank else -1, pipe)] if halts else []
    try:
        made = train(folder, halt=halt, size=85, **how)
        dist.any_rank(True)  # now rank 0 has written everything
        torch.save(result(folder, made), _results(folder, rank))
        dist.disconnect()
        pipe.send(None)
    except SystemExit:
        dist.disconnect()
        raise
    except BaseException as error:
        pipe.send(error)
        raise


def attempt(folder: Path, where=None, rank=0, number=signal.SIGKILL, to=(), **how):
    """Run the job in processes of its own.

    Args:
        folder: of the run.
        where: a point and its count, or "save" and a point of the commit protocol.
        rank: which process the signal is for; a kill hits the others right afterwards.
        number: the signal.
        to: who gets another signal than a kill.
        how: of the training.

    Returns:
        the result of each process; None if the job was killed, or left when it was asked to.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    place = (*where, rank) if where is not None else None
    for name in ("torch._dynamo", "stoker.checkpoint.sharding.planner"):
        import_module(name)  # each fork would do so
    context = multiprocessing.get_context("fork")
    pipes, processes = [], []
    for one in RANKS:
        ours, theirs = context.Pipe()
        args = (one, port, folder, theirs, place, how)
        processes.append(context.Process(target=_child, args=args))
        processes[-1].start()
        theirs.close()
        pipes.append(ours)
    try:
        return _watched(folder, pipes, processes, rank, number, to)
    finally:
        for process, pipe in zip(processes, pipes, strict=True):
            process.kill()
            process.join()
            pipe.close()


def _watched(folder, pipes, processes, rank, number, to):
    left = dict(enumerate(pipes))
    while left:
        ready = wait(list(left.values()), SECONDS)
        assert ready, "the job stands still"
        for one in [one for one, pipe in left.items() if pipe in ready]:
            pipe = left.pop(one)
            try:
                said = pipe.recv()
            except (EOFError, ConnectionResetError):
                processes[one].join()
                if one == rank and processes[one].exitcode == -signal.SIGKILL:
                    return None  # in a save; the others go with it
                assert processes[one].exitcode == 143
                continue
            if said is None:
                continue
            if isinstance(said, BaseException):
                processes[rank].join(60)
                if processes[rank].exitcode == -signal.SIGKILL:
                    return None  # what others say of it
                raise said
            if number == signal.SIGKILL:
                os.kill(processes[rank].pid, signal.SIGKILL)
                return None
            for other in to:
                os.kill(processes[other].pid, number)
            with suppress(BrokenPipeError):
                pipe.send("go on")
            left[one] = pipe
    for process in processes:
        process.join(SECONDS)
    codes = {process.exitcode for process in processes}
    assert codes in ({0}, {143}), codes
    if codes == {143}:
        return None
    return [torch.load(_results(folder, one), weights_only=False) for one in RANKS]


def _results(folder: Path, rank: int) -> Path:
    return folder.with_suffix(f".rank{rank}.pt")
