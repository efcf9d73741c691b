"""The parts of a training in which one rank stands still, or leaves, where it is told to.

``fault.json`` in the current folder says where, on which rank and in which step. It holds for one
attempt: the rank removes it first.
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

FOREVER = 3600
FAULT = Path("fault.json")


class Fault:
    """What happens to one rank, and when."""

    where, rank, step, how = "", -1, 0, "sleep"
    run = None

    @classmethod
    def read(cls, run) -> None:
        told = json.loads(FAULT.read_text()) if FAULT.exists() else {}
        dist.barrier()
        cls.run = run
        cls.where, cls.how = told.get("where", ""), told.get("how", "sleep")
        cls.rank, cls.step = told.get("rank", -1), told.get("step", 0)

    @classmethod
    def at(cls, where: str) -> None:
        """Stand still if this is the place."""
        due = cls.run is not None and cls.run.step >= cls.step - 1
        if where == cls.where and dist.rank() == cls.rank and due and FAULT.exists():
            FAULT.unlink()
            Path("stuck").write_text(str(os.getpid()))
            cls.stand_still()

    @classmethod
    def stand_still(cls) -> None:
        if cls.how == "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        elif cls.how == "spin":
            while True:
                pass
        elif cls.how == "lock":
            threading.Event().wait()
        elif cls.how == "exit":
            sys.exit(0)
        elif cls.how == "vanish":
            os._exit(0)
        else:
            time.sleep(FOREVER)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x):
        Fault.at("forward" if self.training else "validation")
        return self.layer(x)


class Data(Dataset):
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
    """Reads the fault, and stands still in a hook or a save."""

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
        Path(f"step-{dist.rank()}").write_text(str(run.step))
