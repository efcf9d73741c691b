"""This process among its peers. Every function also works where there is only one."""

import atexit
import os
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as c10d

_alone = False
_rank = 0
_agreed_time: float | None = None


def connect(device_type: str = "cpu", *, timeout: float | None = None) -> None:
    """Join the processes that a launcher has started, as the environment says; alone, do nothing.

    torchrun, Ray Train and Spark set ``RANK``, ``WORLD_SIZE`` and the address; Slurm's own names
    are read where those are missing. Whoever is connected already stays so.

    Args:
        device_type: "cuda" exchanges tensors on its devices, too.
        timeout: seconds after which an exchange that nobody answers fails.
    """
    global _rank  # noqa: PLW0603
    place = place_in(os.environ)
    if place is not None and not _connected():
        for name, value in place.items():
            os.environ.setdefault(name, value)
        backend = "cpu:gloo,cuda:nccl" if device_type == "cuda" else "gloo"  # cuda: untested here
        limit = timedelta(seconds=timeout) if timeout is not None else None
        c10d.init_process_group(backend, timeout=limit)
        atexit.register(disconnect)
    _rank = rank()


def disconnect() -> None:
    """Leave the other processes; what is left to Python's end may abort instead."""
    global _rank  # noqa: PLW0603
    _rank = 0
    if _connected():
        c10d.destroy_process_group()


def place_in(environment: Mapping[str, str]) -> dict[str, str] | None:
    """The place among several processes that a launcher gave this one; None where there is none.

    Of Slurm only a step of several tasks counts: the script of a batch job is one process,
    however many tasks the job has.
    """
    names = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    given = {name: environment[name] for name in names if name in environment}
    if len(given) == len(names):
        return given
    if "RANK" in given and int(given.get("WORLD_SIZE", "1")) > 1:
        missing = " and ".join(name for name in names if name not in given)
        raise ValueError(
            f"the environment says that this is rank {given['RANK']} of {given['WORLD_SIZE']}, but "
            f"not where they meet: {missing} is not set"
        )
    tasks = environment.get("SLURM_STEP_NUM_TASKS", "1")
    if tasks == "1" or "SLURM_PROCID" not in environment:
        return None
    numbers = [int(environment.get(name, "0")) for name in ("SLURM_JOB_ID", "SLURM_STEP_ID")]
    return {
        "RANK": environment["SLURM_PROCID"],
        "WORLD_SIZE": tasks,
        "LOCAL_RANK": environment.get("SLURM_LOCALID", "0"),
        "MASTER_ADDR": _first_node(environment.get("SLURM_STEP_NODELIST", "localhost")),
        "MASTER_PORT": str(20_000 + sum(numbers) % 10_000),
        **given,
    }


def _first_node(nodes: str) -> str:
    """The first of a list in Slurm's notation, such as ``gpu[03-07,11]`` or ``login,gpu1``."""
    return re.sub(r"\[([^],-]+)[^]]*\]", r"\1", nodes).split(",")[0]


def rank() -> int:
    """The number of this process, 0 where it is alone.

    One whose peers are gone, because a cluster has taken their connection down, keeps its number:
    it must not take itself for the first.
    """
    return c10d.get_rank() if _connected() else _rank


def world_size() -> int:
    """How many processes train together."""
    return c10d.get_world_size() if _connected() else 1


def is_main() -> bool:
    """Whether this process is the one that speaks: rank 0."""
    return rank() == 0


def all_reduce_sum(*numbers: float) -> list[float]:
    """Each number summed over all processes, in double precision. Every process must call it."""
    if _alone or world_size() == 1:
        return list(numbers)
    sums = torch.tensor(numbers, dtype=torch.float64)
    c10d.all_reduce(sums)
    total: list[float] = sums.tolist()
    return total


def barrier() -> None:
    """Wait until all processes are here. Every process must call it."""
    all_reduce_sum(0.0)


def any_rank(flag: bool) -> bool:
    """Whether ``flag`` is true on any process. Every process must call it."""
    return all_reduce_sum(float(flag)) != [0.0]


def all_reduce_max(*numbers: float) -> list[float]:
    """The all_reduce_max of each number over all processes. Every process must call it."""
    if _alone or world_size() == 1:
        return list(numbers)
    found = torch.tensor(numbers, dtype=torch.float64)
    c10d.all_reduce(found, c10d.ReduceOp.MAX)
    most: list[float] = found.tolist()
    return most


def now() -> float:
    """Seconds of a clock that only goes forward, for decisions that all processes make alike.

    Where there are several it stands still between two calls of `set_now`.
    """
    return time.monotonic() if _agreed_time is None else _agreed_time


def set_now(seconds: float | None) -> None:
    """All processes have agreed on the time; None lets each have its own."""
    global _agreed_time  # noqa: PLW0603
    _agreed_time = seconds


def broadcast_from_rank0(value: str) -> str:
    """What rank 0 has for ``value``. Every process must call it."""
    if _alone or world_size() == 1:
        return value
    held = [value]
    c10d.broadcast_object_list(held, src=0)
    return held[0]


def all_gather_object(value: Any) -> list[Any]:
    """What each process has for ``value``, by rank. Every process must call it."""
    if _alone or world_size() == 1:
        return [value]
    found: list[Any] = [None] * world_size()
    c10d.all_gather_object(found, value)
    return found


def all_gather_floats(*numbers: float) -> list[list[float]]:
    """The numbers of each process, by rank, in double precision. Every process must call it."""
    if _alone or world_size() == 1:
        return [list(numbers)]
    found = torch.zeros(world_size(), len(numbers), dtype=torch.float64)
    found[rank()] = torch.tensor(numbers, dtype=torch.float64)
    c10d.all_reduce(found)
    table: list[list[float]] = found.tolist()
    return table


def broadcast_object(value: Any, lender: int) -> Any:
    """What the process ``lender`` has for ``value``. Every process must call it."""
    if _alone or world_size() == 1:
        return value
    held = [value if rank() == lender else None]
    c10d.broadcast_object_list(held, src=lender)
    return held[0]


@contextmanager
def alone() -> Iterator[None]:
    """Within it, sums stay local: for one process that looks while the others do not."""
    global _alone  # noqa: PLW0603
    before, _alone = _alone, True
    try:
        yield
    finally:
        _alone = before


def _connected() -> bool:
    return c10d.is_available() and c10d.is_initialized()
