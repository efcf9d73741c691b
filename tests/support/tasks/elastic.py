"""A training with logical ranks whose processes are killed from outside."""

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from time import sleep
from typing import Any, TypeVar

import torch
import torch.distributed as c10d
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from stoker import Engine, Hook, Layout, Trainer, hooks
from stoker.core import dist
from stoker.core.membership.member import Membership
from stoker.run import Run

T = TypeVar("T")


class Meet(Hook):
    """Holds every process at a step until the test lets it continue, and reports who is there."""

    same_on_all_ranks = True
    observes = True

    def __init__(self, folder: Path, steps: list[int]) -> None:
        self.folder, self.steps = folder, steps

    def before_step(self, run: Run) -> None:
        with (self.folder / f"seen-{os.getpid()}").open("a") as file:
            print(run.step, file=file)
        if run.step in self.steps:
            (self.folder / f"at-{run.step}-{os.getpid()}").touch()
            while not (self.folder / f"go-{run.step}").exists():
                sleep(0.01)


class LosesWorker(Hook):
    """Kills the worker of the loader of one process."""

    same_on_all_ranks = True
    observes = True

    def after_step(self, run: Run) -> None:
        members = dist.members()
        if members is not None and members.member == 1 and run.step == 2:
            for worker in multiprocessing.active_children():
                os.kill(worker.pid or 0, signal.SIGKILL)


class DiesOnce(Hook):
    """Kills the second process in its fourth step, the first time."""

    same_on_all_ranks = True
    observes = True

    def __init__(self, killed: Path) -> None:
        self.killed = killed

    def after_forward(self, run: Run) -> None:
        if run.step == 3 and dist.rank() == 1 and not self.killed.exists():
            self.killed.touch()
            os.kill(os.getpid(), signal.SIGKILL)


class DiesInSave(Hook):
    """Kills the first process when it writes the checkpoint of the first epoch to the disk."""

    same_on_all_ranks = True
    observes = True

    def after_epoch(self, run: Run) -> None:
        members = dist.members()
        if members is not None and members.member == 0:
            os.fsync = lambda _: os.kill(os.getpid(), signal.SIGKILL)


class LosesDatabase(Hook):
    """Raises an error of a connection that the job does not know of."""

    same_on_all_ranks = True
    observes = True

    def after_forward(self, run: Run) -> None:
        if run.step == 2:
            raise ConnectionResetError("the database was reset by peer")


def train(folder: Path, steps: list[int], workers: int = 0, hook: Hook | None = None) -> Any:
    torch.manual_seed(0)
    x, y = torch.randn(40, 4), torch.randint(3, (40,))
    data = DataLoader(TensorDataset(x, y), batch_size=2, shuffle=True, num_workers=workers)
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 3))
    optimizer = torch.optim.AdamW(model.parameters(), 0.01)
    layout = Layout(replicate=-1, logical_ranks=4)
    trainer = Trainer(
        Engine(model, optimizer, nn.CrossEntropyLoss(), layout=layout),
        hooks=[*hooks.default(log_every=1, progress=False), hook or Meet(folder, steps)],
        run_dir=folder / "run",
        seed=1,
    )
    trainer.fit(data, data, epochs=2)
    trainer.evaluate(data)  # writes a line with the step and the names of the last one
    state = [*model.state_dict().values(), *_tensors(optimizer.state_dict()["state"])]
    digest = sha256(b"".join(one.detach().numpy().tobytes() for one in state)).hexdigest()
    return digest, trainer.run.step, trainer.run.samples


def _tensors(state: Any) -> list[torch.Tensor]:
    return [value for one in state.values() for value in one.values()]


def die_at(folder: Path, collective: int) -> Any:
    """Train; the first process dies when it begins this collective of the job."""
    run, begun = Membership.run, [0]

    def dying_run(members: Membership, operation: Callable[[], T]) -> T:
        begun[0] += not members.joining
        if members.member == 0 and begun[0] == collective:
            os.kill(os.getpid(), signal.SIGKILL)
        return run(members, operation)

    Membership.run = dying_run  # type: ignore[method-assign]
    return (*train(folder, []), begun[0])


def open_while_connecting(folder: Path) -> tuple[int, bool]:
    """Open a connection of its own while a group is formed; lose a group, and use both."""
    connect, own = c10d.init_process_group, []

    def and_open(*args: Any, **kwargs: Any) -> None:
        connect(*args, **kwargs)
        port = int(os.environ["MASTER_PORT"])
        own.append(c10d.TCPStore("127.0.0.1", port, is_master=False, wait_for_workers=False))

    c10d.init_process_group = and_open
    dist.connect()
    members = dist.members()
    assert members is not None
    if members.member == 0:
        members.jobs.propose(members.generation + 1, members.members)
    while dist.any_rank(members.generation == 0):  # so that both end after the same collective
        pass
    return members.generation, bool(own[0].check(["generation/0"]))


def stop_in_transfer() -> list[int]:
    """Stop a process while another one sends to it, and return the members after that."""
    dist.connect()
    members = dist.members()
    assert members is not None
    large = torch.ones(30_000_000)

    def sent() -> None:
        if members.member == 1:
            threading.Timer(0.005, os.kill, (os.getpid(), signal.SIGSTOP)).start()
        dist.wait_for(c10d.broadcast(large, 0, async_op=True))

    while members.generation == 0:
        dist.barrier()
        dist.collective(sent, None)
    return members.members


def wait_for_each_other() -> None:
    """Wait on one process for what the other one never does."""
    dist.connect()
    members = dist.members()
    assert members is not None
    if members.member == 0:
        members.run(threading.Event().wait)
    dist.barrier()
