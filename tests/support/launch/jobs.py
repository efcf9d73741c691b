"""What the processes of launched jobs do in tests, and a program that launches them.

``python jobs.py FOLDER JOB {options of launch.run}``: what the job returned is printed as JSON.
Each rank leaves its process number in FOLDER, and touches a file there once it is at work.
"""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import torch
from torch import nn

from stoker import launch
from stoker.core import dist
from stoker.core.errors import Preempted

FOREVER = 3600  # seconds; each process that sleeps so long is ended by somebody else


def begin(folder: str) -> int:
    dist.connect()
    dist.barrier()  # torch logs an error if a process leaves while others connect to it
    rank = dist.rank()
    (Path(folder) / f"pid-{rank}").write_text(str(os.getpid()))
    return rank


def at_work(folder: str, rank: int) -> None:
    (Path(folder) / f"at-work-{rank}").touch()


def attempt(folder: str, rank: int) -> int:
    """Which attempt this is, counted from 1."""
    path = Path(folder) / f"attempts-{rank}"
    number = int(path.read_text()) + 1 if path.exists() else 1
    path.write_text(str(number))
    return number


def meet(folder: str) -> dict:
    rank = begin(folder)
    sys.stderr.write(f"rank {rank} speaks\n")  # at once: print writes the end of a line by itself
    names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")
    mine = {name: os.environ[name] for name in names}
    return {"ranks": dist.all_gather_object(mine), "sum": dist.all_reduce_sum(rank + 1.0)[0]}


def with_arguments(folder: str, *args) -> list:
    return [*args, dist.world_size(), torch.get_num_threads()]


def one_raises(folder: str) -> None:
    rank = begin(folder)
    if rank == 1:
        raise ValueError("there is no such thing")
    dist.all_reduce_sum(1.0)


def one_is_gone_before_it_raises(folder: str) -> None:
    if begin(folder) == 1:
        dist.disconnect()
        time.sleep(1)  # the other one fails meanwhile
        raise ValueError("there is no such thing")
    dist.all_reduce_sum(1.0)


def one_raises_while_another_sleeps(folder: str) -> None:
    if begin(folder) == 1:
        raise ValueError("there is no such thing")
    time.sleep(FOREVER)


def one_leaves(folder: str, code: int) -> None:
    rank = begin(folder)
    if rank == 1:
        raise SystemExit(code)
    dist.all_reduce_sum(1.0)


class Refused(ValueError):
    exit_code = 2


def all_refuse(folder: str) -> None:
    attempt(folder, begin(folder))
    raise Refused("the config has no 'model'")


def in_forward(folder: str) -> None:
    """Training by hand; rank 1 stands still within its third forward pass."""
    rank = begin(folder)
    model = nn.parallel.DistributedDataParallel(nn.Linear(4, 4))
    for step in range(1000):
        loss = model(torch.ones(2, 4)).sum()
        if rank == 1 and step == 2:
            at_work(folder, rank)
            time.sleep(FOREVER)
        loss.backward()


def in_all_reduce(folder: str) -> None:
    """Rank 1 stands still within an all-reduce, which rank 0 joins late."""
    rank = begin(folder)
    if rank == 0:
        time.sleep(FOREVER)
    at_work(folder, rank)
    dist.all_reduce_sum(1.0)


def with_a_helper(folder: str) -> None:
    """Each rank has started a process of its own, as loaders do."""
    rank = begin(folder)
    helper = subprocess.Popen([sys.executable, "-c", f"import time; time.sleep({FOREVER})"])
    (Path(folder) / f"pid-helper-{rank}").write_text(str(helper.pid))
    at_work(folder, rank)
    helper.wait()


def never_stops(folder: str) -> None:
    rank = begin(folder)
    signalled = Path(folder) / f"signalled-{rank}"
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: signalled.touch())
    at_work(folder, rank)
    while True:
        time.sleep(0.05)


def saves_and_leaves(folder: str) -> None:
    """As a Trainer does on SIGTERM: the ranks save one after another, and leave with 143."""
    rank, asked = begin(folder), []
    signal.signal(signal.SIGTERM, lambda *_: asked.append(1))
    at_work(folder, rank)
    while not dist.any_rank(bool(asked)):
        time.sleep(0.05)
    time.sleep(0.2 + 0.8 * rank)
    (Path(folder) / f"saved-{rank}").touch()
    raise Preempted


def works(folder: str) -> None:
    rank = begin(folder)
    at_work(folder, rank)
    time.sleep(FOREVER)


def second_attempt_succeeds(folder: str) -> int:
    rank = begin(folder)
    number = attempt(folder, rank)
    dist.all_reduce_sum(1.0)
    if rank == 1 and number == 1:
        raise ValueError("not yet")
    return int(dist.all_reduce_sum(number)[0])


if __name__ == "__main__":
    folder, name, options = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
    arguments = options.pop("args", [])
    (Path(folder) / "pid-launcher").write_text(str(os.getpid()))
    print(json.dumps(launch.run(globals()[name], folder, *arguments, **options)))
