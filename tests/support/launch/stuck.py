"""The parts of a training in which one rank stands still, or leaves, where it is told to.

What is to happen stands in files of the current folder, ``faults/0``, ``faults/1``, …, as JSON.
Each attempt at the training minds the first one, and the rank to which it happens removes it.
"""

import json
import os
import signal
import sys
import threading
import time
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from stoker import Hook
from stoker.core import dist
from stoker.storage import crash_points

FOREVER = 3600  # seconds; a process that sleeps so long is ended by somebody else


class Fault:
    """What happens to one rank in this attempt, and when."""

    path = Path()
    where, rank, step, how = "", -1, 0, ""
    run = None

    @classmethod
    def read(cls, run) -> None:
        cls.path = min(Path("faults").glob("*"), default=Path("none"))
        told = json.loads(cls.path.read_text()) if cls.path.exists() else {}
        dist.barrier()
        cls.run, cls.where, cls.how = run, told.get("where", ""), told.get("how", "sleep")
        cls.rank, cls.step = told.get("rank", -1), told.get("step", 0)

    @classmethod
    def at(cls, where: str) -> None:
        """Let it happen, if this is the place."""
        due = cls.run is not None and cls.run.step >= cls.step - 1
        if where == cls.where and dist.rank() == cls.rank and due:
            cls.where = ""
            cls.path.unlink()
            Path("at-work-1").touch()
            cls.stand_still()

    @classmethod
    def stand_still(cls) -> None:
        if cls.how == "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
            time.sleep(FOREVER)  # once it is continued
        elif cls.how == "lock":
            threading.Event().wait()
        elif cls.how == "exit":
            sys.exit(0)
        elif cls.how == "vanish":
            os._exit(0)
        else:
            time.sleep(FOREVER)


class Net(nn.Module):
    """One layer."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x):
        Fault.at("forward" if self.training else "validation")
        return self.layer(x)


class Data(Dataset):
    """Samples that are the same each time."""

    def __init__(self, size: int) -> None:
        self.x = torch.randn(size, 4, generator=torch.Generator().manual_seed(3))

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int):
        Fault.at("data")
        return self.x[index], index % 3


def loader(size: int) -> DataLoader:
    return DataLoader(Data(size), batch_size=4)


class Stuck(Hook):
    """Reads what is to happen, and stands still in a hook or a save."""

    same_on_all_ranks = True

    def before_run(self, run) -> None:
        Path(f"pid-{dist.rank()}-{time.time_ns()}").write_text(str(os.getpid()))
        Fault.read(run)
        crash_point = crash_points.at

        def at(point: str) -> None:
            if point == "file-written":
                Fault.at("save")
            crash_point(point)

        crash_points.at = at

    def after_step(self, run) -> None:
        Fault.at("hook")
        if Fault.path.exists():
            time.sleep(0.5)  # the watch sees at least two steps, so that this is not the first
