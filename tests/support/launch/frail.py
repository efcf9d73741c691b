"""The parts of a training whose processes die where they are told to.

What is to happen stands in files of the current folder, `faults/0`, `faults/1`, …, as JSON. Each
attempt at the training minds the first one; a process that dies of it removes it before, unless it
is to happen always.
"""

import json
import os
import signal
import threading
import time
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from stoker import Hook
from stoker.core import dist

FOREVER = 3600  # seconds; a process that sleeps so long is ended by its launcher


class Fault:
    """What is to happen in this attempt, and to whom."""

    def __init__(self) -> None:
        name = dist.broadcast_from_rank0(str(min(Path("faults").glob("*"), default="none")))
        self.path = Path(name)
        told = json.loads(self.path.read_text()) if self.path.exists() else {}
        dist.all_reduce_sum(0.0)  # all have read it
        self.where, self.step = told.get("where", ""), told.get("step", 0)
        self.is_mine = told.get("rank") == dist.rank()
        self.always = told.get("always", False)
        self.others_are_stuck = told.get("others") == "stuck"

    def strike(self) -> None:
        self.remove()
        os.kill(os.getpid(), signal.SIGKILL)

    def remove(self) -> None:
        if not self.always:
            self.path.unlink()


class Net(nn.Module):
    """A small net with dropout, which tells the hook below when it is within its passes."""

    on_forward = staticmethod(lambda: None)
    on_backward = staticmethod(lambda: None)

    def __init__(self) -> None:
        super().__init__()
        self.first, self.drop, self.last = nn.Linear(4, 8), nn.Dropout(0.3), nn.Linear(8, 3)

    def forward(self, x):
        hidden = self.first(x)
        if self.training:
            Net.on_forward()
            hidden.register_hook(lambda _: Net.on_backward())
        return self.last(self.drop(hidden.relu()))


class Data(Dataset):
    """Samples that are drawn anew each time they are read."""

    on_read = staticmethod(lambda: None)

    def __init__(self, size: int) -> None:
        self.x = torch.randn(size, 4, generator=torch.Generator().manual_seed(3))

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int):
        Data.on_read()
        return self.x[index] + 0.1 * torch.randn(4), index % 3


def loader(size: int, shuffle: bool = False) -> DataLoader:
    return DataLoader(Data(size), batch_size=4, shuffle=shuffle)


class Dies(Hook):
    """Lets happen what is to happen."""

    priority = 95

    def before_run(self, run) -> None:
        Path(f"pid-{dist.rank()}-{time.time_ns()}").write_text(str(os.getpid()))
        self.run, self.fault = run, Fault()
        Net.on_forward, Net.on_backward, Data.on_read = self.forward, self.backward, self.read
        kind, _, point = self.fault.where.partition(" ")
        if kind == "save" and self.fault.is_mine:
            self.fault.remove()
            os.environ["STOKER_KILL_AT"] = point

    def after_step(self, run) -> None:
        if self._in_step("hook", run.step) and self.fault.is_mine:
            raise ValueError("no such thing as this step")
        if self._in_step("hook", run.step) and self.fault.others_are_stuck:
            time.sleep(FOREVER)
        if self._in_step("signal", run.step):
            Path(f"at-work-{dist.rank()}").touch()
            while run.requests.local_stop is None:
                time.sleep(0.02)

    def forward(self) -> None:
        if self._in_step("forward") and self.fault.is_mine:
            self.fault.strike()

    def backward(self) -> None:
        """One process waits in the all-reduce of the gradients, which the other joins later."""
        if self._in_step("all-reduce") and self.fault.is_mine:
            threading.Timer(0.5, self.fault.strike).start()
        elif self._in_step("all-reduce"):
            time.sleep(FOREVER if self.fault.others_are_stuck else 1.5)

    def read(self) -> None:
        if self._in_step("data") and self.fault.is_mine:
            time.sleep(FOREVER)

    def _in_step(self, where: str, step: int | None = None) -> bool:
        step = self.run.step + 1 if step is None else step
        return (self.fault.where, self.fault.step) == (where, step)
