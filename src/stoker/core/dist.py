"""Communication between the ranks of a job. Every function also works in a single process."""

import atexit
import os
import re
import socket
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as c10d

from stoker.core.membership import Membership, gather_objects

T = TypeVar("T")

_alone = False
_observes_everything = False
_rank = 0
_agreed_time: float | None = None
_groups: dict[tuple[int, ...], Any] = {}
_membership: Membership | None = None


def connect(device_type: str = "cpu", *, timeout: float | None = None) -> None:
    """Join the ranks that a launcher has started, if the environment describes any.

    torchrun, Ray Train and Spark set ``RANK``, ``WORLD_SIZE`` and the address; Slurm's variables
    are used if those are missing. A process that is connected already stays connected.

    Args:
        device_type: "cuda" also connects the GPUs.
        timeout: seconds after which a collective that a rank does not join fails.
    """
    global _rank, _membership  # noqa: PLW0603
    if _membership is None:
        _membership = Membership.from_environment(os.environ)
        if _membership is not None:
            _check_elastic(device_type)
            atexit.register(disconnect)
    found = rendezvous_in(os.environ) if _membership is None else None
    if found is not None and not _connected():
        for name, value in found.items():
            os.environ.setdefault(name, value)
        backend = "cpu:gloo,cuda:nccl" if device_type == "cuda" else "gloo"  # cuda: untested here
        if device_type == "cuda":  # write what ranks were waiting for if a collective times out
            os.environ.setdefault("TORCH_FR_BUFFER_SIZE", "2000")
            os.environ.setdefault("TORCH_NCCL_DUMP_ON_TIMEOUT", "1")
        limit = timedelta(seconds=timeout) if timeout is not None else None
        c10d.init_process_group(backend, timeout=limit, **_store_of_attempt())
        atexit.register(disconnect)
    _rank = rank()


def _check_elastic(device_type: str) -> None:
    if device_type == "cuda":
        raise ValueError(
            "elastic runs on CPUs only, but the device is cuda: leave elastic out, and restart the "
            "job from its newest checkpoint after a failure (max_restarts)"
        )


def members() -> Membership | None:
    """Return the membership of this process in an elastic job; None in any other job."""
    return _membership


def position() -> tuple[int, int]:
    """Return the number of this process among those that share the work, and how many these are."""
    if _membership is not None:
        return _membership.members.index(_membership.member), len(_membership.members)
    return (rank(), world_size()) if world_size() > 1 else (0, 1)


def generation() -> int:
    """Return the number of changes of the members of an elastic job, 0 in any other job."""
    return 0 if _membership is None else _membership.generation


def begin_member() -> None:
    """Take part in collectives, if this process has joined an elastic job."""
    if _membership is not None:
        _membership.begin()


def inherited() -> bool:
    """Return whether this process is rank 0 because another one left an elastic job."""
    return _membership is not None and _membership.inherited


def _store_of_attempt() -> dict[str, Any]:
    """Return the store for a job of one machine that torchrun has restarted, else nothing.

    torchrun reuses its store, in which torch 2.13 finds the addresses of the ranks that have died.
    On several machines the agents may have counted different numbers of restarts.
    """
    count = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    if count == "0" or os.environ.get("LOCAL_WORLD_SIZE") != os.environ["WORLD_SIZE"]:
        return {}
    torch_distributed: Any = c10d  # torch's types leave these out
    store, rank, world_size = next(torch_distributed.rendezvous("env://"))
    store = torch_distributed.PrefixStore(f"stoker/attempt-{count}", store)
    return {"store": store, "rank": rank, "world_size": world_size}


def disconnect() -> None:
    """Leave the other ranks; without it, gloo may abort when Python exits."""
    global _rank  # noqa: PLW0603
    _rank = 0
    _groups.clear()
    if _membership is not None:
        _membership.disconnect()
    elif _connected():
        c10d.destroy_process_group()


def rendezvous_in(environment: Mapping[str, str]) -> dict[str, str] | None:
    """Return the rank, world size and address that a launcher set; None for a single process.

    Of Slurm only a step of several tasks counts: a batch script is one process, however many tasks
    its job has.
    """
    names = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    given = {name: environment[name] for name in names if name in environment}
    if len(given) == len(names):
        return given
    if "RANK" in given and int(given.get("WORLD_SIZE", "1")) > 1:
        missing = " and ".join(name for name in names if name not in given)
        raise ValueError(
            f"RANK={given['RANK']} and WORLD_SIZE={given['WORLD_SIZE']} are set, but {missing} is "
            "not: start the job with a launcher such as torchrun"
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


def local_rank(environment: Mapping[str, str]) -> int | None:
    """Return the number of this process among those of the job on its machine.

    torchrun, Ray Train, Spark, Slurm and MPI set it. Without any of them, ranks are assumed to be
    numbered machine by machine, and the rank is returned; None for a single process.
    """
    tasks = environment.get("SLURM_STEP_NUM_TASKS", "1")
    in_slurm = tasks != "1" and environment.get("RANK", "") in ("", environment.get("SLURM_PROCID"))
    names = ["LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID"]
    names += ["SLURM_LOCALID"] if in_slurm else []  # a batch script has it too, always 0
    ranks = environment.get("WORLD_SIZE", tasks if in_slurm else "1")
    if ranks == "1" and world_size() == 1:
        return None
    name = next((name for name in names if name in environment), "RANK")
    found = environment.get(name, str(rank()))
    if not found.isdecimal():
        raise ValueError(f"{name} is {found!r}, expected the number of a process, 0 or more")
    return int(found)


def _first_node(nodes: str) -> str:
    """Return the first node of a list such as ``gpu[03-07,11]`` or ``login,gpu1``."""
    return re.sub(r"\[([^],-]+)[^]]*\]", r"\1", nodes).split(",")[0]


def rank() -> int:
    """Return the rank of this process, 0 in a single process.

    It stays the same after the connection is closed, so that only one process acts as rank 0. In
    an elastic job it changes when processes before this one leave.
    """
    if _membership is not None:
        return _membership.rank
    return c10d.get_rank() if _connected() else _rank


def world_size() -> int:
    """Return the number of ranks."""
    return c10d.get_world_size() if _connected() else 1


def is_main() -> bool:
    """Return whether this is rank 0, which logs and writes files."""
    return rank() == 0


def all_reduce_sum(*numbers: float) -> list[float]:
    """Return each number summed over all ranks, in double precision. All ranks must call it."""
    return _all_reduce(numbers, c10d.ReduceOp.SUM)


def sum_observed(*numbers: float) -> list[float]:
    """Return each number summed over all that the ranks observe. All ranks must call it."""
    if _observes_everything or (_membership is None and not _connected()):  # of one, in short
        return list(numbers)
    return all_reduce_sum(*numbers)


def gather_observed(value: Any) -> list[Any]:
    """Return what the ranks observe, once each. All ranks must call it."""
    return [value] if _observes_everything else all_gather_object(value)


def start_sum(number: float) -> Callable[[], float]:
    """Begin to sum a number over all ranks; return a function that waits for the sum.

    All ranks must call it, and it overlaps with what they do until they need the sum.
    """
    if _alone or world_size() == 1:
        return lambda: number
    total = torch.tensor([number], dtype=torch.float64)
    work = c10d.all_reduce(total, async_op=True)

    def wait() -> float:
        wait_for(work)
        return float(total)

    return wait


def barrier() -> None:
    """Wait for all ranks. All ranks must call it."""
    all_reduce_sum(0.0)


def any_rank(flag: bool) -> bool:
    """Return whether ``flag`` is true on any rank. All ranks must call it."""
    return all_reduce_sum(float(flag)) != [0.0]


def all_reduce_max(*numbers: float) -> list[float]:
    """Return the maximum of each number over all ranks. All ranks must call it."""
    return _all_reduce(numbers, c10d.ReduceOp.MAX)


def _all_reduce(numbers: tuple[float, ...], operation: Any) -> list[float]:
    def reduced() -> list[float]:
        found = torch.tensor(numbers, dtype=torch.float64)
        wait_for(c10d.all_reduce(found, operation, async_op=True))
        result: list[float] = found.tolist()
        return result

    return collective(reduced, list(numbers))


def collective(operation: Callable[[], T], single: T) -> T:
    """Return the result of an operation of all ranks; ``single`` is that of a single process.

    In an elastic job it is repeated if a member is lost meanwhile, so all ranks must finish it or
    none. It must not change anything but its result.
    """
    if _alone or not _shares():
        return single
    return together(lambda: operation() if world_size() > 1 else single)


def together(operation: Callable[[], T]) -> T:
    """Return the result of an operation with collectives, which an elastic job takes for one."""
    if _membership is None or _alone or not _shares():
        return operation()
    return _membership.run(operation)


def _shares() -> bool:
    """Return whether this process takes part in collectives: in an elastic job, not always."""
    members = _membership
    return members is None or not (members.joining or members.left)


def wait_for(work: Any) -> None:
    """Wait for a collective that was started before."""
    if _membership is None:
        work.wait()
    else:
        _membership.wait_for(work)


def now() -> float:
    """Return the time of a monotonic clock, for decisions that all ranks must make together.

    In a job of several ranks it advances only with `set_now`.
    """
    return time.monotonic() if _agreed_time is None else _agreed_time


def set_now(seconds: float | None) -> None:
    """Set the time that all ranks agreed on; None gives each rank its own clock."""
    global _agreed_time  # noqa: PLW0603
    _agreed_time = seconds


def gather_reports(name: str, text: str, patience: float | None) -> list[str | None]:
    """Return what each rank reports under a name that is used once; no collective is needed.

    Args:
        name: the same on all ranks.
        text: the report of this rank.
        patience: seconds to wait for each of the others; None to wait as long as for a collective.
            A rank that has not reported by then counts as None.
    """
    if _alone or world_size() == 1:
        return [text]
    store = c10d.distributed_c10d._get_default_store()
    store.set(f"stoker/{name}/{rank()}", text)
    found: list[str | None] = []
    for other in range(world_size()):
        key = f"stoker/{name}/{other}"
        try:
            store.wait([key], *([] if patience is None else [timedelta(seconds=patience)]))
            found.append(store.get(key).decode())
        except RuntimeError:  # some stores raise nothing more special
            found.append(None)
    return found


def broadcast_from_rank0(value: T) -> T:
    """Return the value of rank 0. All ranks must call it."""
    found: T = broadcast_object(value, 0)
    return found


def decide_on_rank0(decide: Callable[[], T], otherwise: T) -> T:
    """Return what rank 0 decides. All ranks must call it.

    If rank 0 is lost meanwhile, the next one of an elastic job decides.

    Args:
        decide: returns the value.
        otherwise: the value on another rank that does not take part in collectives.
    """
    while True:
        decides = is_main()
        value = decide() if decides else otherwise
        if _alone or not _shares():
            return value
        is_decided, found = broadcast_from_rank0((decides, value))
        if is_decided:
            return found


def publish_from_rank0(name: str, decide: Callable[[], T], otherwise: T) -> T:
    """Return what rank 0 decides, also on a process that joins an elastic job later.

    Args:
        name: what the value is. All ranks must call it equally often with the same name.
        decide: as in `decide_on_rank0`.
        otherwise: as in `decide_on_rank0`.
    """
    if _membership is None:
        return decide_on_rank0(decide, otherwise)
    return _membership.publish(name, lambda: decide_on_rank0(decide, otherwise))


def on_rank0(flag: bool) -> bool:
    """Return the flag of the rank 0 of an elastic job, True in any other. All ranks must call it.

    If rank 0 is lost meanwhile, it is the flag that the next one has passed.
    """
    return True if _membership is None else broadcast_from_rank0(flag)


def all_gather_object(value: Any) -> list[Any]:
    """Return the value of each rank, by rank. All ranks must call it."""

    def gathered() -> list[Any]:
        if _membership is not None:
            return gather_objects(value, wait_for)
        found: list[Any] = [None] * world_size()
        c10d.all_gather_object(found, value)
        return found

    return collective(gathered, [value])


def all_gather_floats(*numbers: float) -> list[list[float]]:
    """Return the numbers of each rank, by rank, in double precision. All ranks must call it."""

    def gathered() -> list[list[float]]:
        found = torch.zeros(world_size(), len(numbers), dtype=torch.float64)
        found[rank()] = torch.tensor(numbers, dtype=torch.float64)
        wait_for(c10d.all_reduce(found, async_op=True))
        table: list[list[float]] = found.tolist()
        return table

    return collective(gathered, [list(numbers)])


def broadcast_object(value: Any, source: int) -> Any:
    """Return the value of the rank ``source``. All ranks must call it."""
    if _alone or not _shares() or (_membership is None and world_size() == 1):
        return value
    if _membership is not None:  # the source must not be ahead of those that wait for it
        return all_gather_object(value)[source]
    held = [value if rank() == source else None]
    c10d.broadcast_object_list(held, src=source)
    return held[0]


def group_of(ranks: Sequence[int]) -> Any:
    """Return the process group of some ranks, None in a single process.

    Only these ranks must call it; later calls return the same group.
    """
    if world_size() == 1:
        return None
    if len(ranks) == world_size():
        return c10d.group.WORLD
    key = (id(c10d.group.WORLD), *ranks)  # a new connection has new groups
    if key not in _groups:
        _groups[key] = c10d.new_group(list(ranks), use_local_synchronization=True)
    return _groups[key]


def exchange(
    transfers: Iterable[tuple[int, Sequence[torch.Tensor], Sequence[torch.Tensor]]],
) -> None:
    """Send tensors to other ranks and fill tensors with what they send, all at the same time.

    Args:
        transfers: for each rank what to send to it, and what to fill with what it sends.
    """
    operations = []
    for peer, sent, received in transfers:
        operations += [c10d.P2POp(c10d.isend, one.detach().contiguous(), peer) for one in sent]
        operations += [c10d.P2POp(c10d.irecv, one, peer) for one in received]
    for work in c10d.batch_isend_irecv(operations) if operations else ():
        work.wait()


def send_object(value: Any, peer: int) -> None:
    """Send a value to another rank, which calls `receive_object`."""
    c10d.send_object_list([value], dst=peer)


def receive_object(peer: int) -> Any:
    """Return what another rank sends with `send_object`."""
    held = [None]
    c10d.recv_object_list(held, src=peer)
    return held[0]


def is_of_torch(function: Callable[..., Any]) -> bool:
    """Return whether a function is part of `torch.distributed`."""
    return function.__module__.startswith("torch.distributed.")


def free_port() -> int:
    """Return a port that is free on this machine."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def lost_peer(error: BaseException | None) -> bool:
    """Return whether an error is due to a connection that another rank has closed."""
    while error is not None:
        if isinstance(error, c10d.DistError) or "peer" in str(error):  # gloo: a RuntimeError
            return True
        error = error.__cause__ or error.__context__
    return False


@contextmanager
def alone() -> Iterator[None]:
    """Keep collectives local within the block, because other ranks may not take part."""
    global _alone  # noqa: PLW0603
    before, _alone = _alone, True
    try:
        yield
    finally:
        _alone = before


@contextmanager
def observing_everything() -> Iterator[None]:
    """Within the block, every rank observes the data of all, so that there is nothing to add."""
    global _observes_everything  # noqa: PLW0603
    before, _observes_everything = _observes_everything, True
    try:
        yield
    finally:
        _observes_everything = before


_connected: Callable[[], bool] = c10d.is_initialized if c10d.is_available() else bool
"""Whether there is a process group."""
