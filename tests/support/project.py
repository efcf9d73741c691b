"""A small project in a folder: a module of parts, and a YAML that trains it."""

import importlib
import sys
from pathlib import Path
from typing import Any

PARTS = '''\
"""Parts that configs name."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from stoker import Hook
from support.toys import samples

MADE = []


class Net(nn.Module):
    def __init__(self, width: int = 8, dropout: float = 0.0, name: str = "net") -> None:
        super().__init__()
        MADE.append("Net")
        self.first = nn.Linear(4, width)
        self.drop = nn.Dropout(dropout)
        self.last = nn.Linear(width, 3)

    def forward(self, x):
        return self.last(self.drop(self.first(x).relu()))


class Pair(nn.Module):
    def __init__(self, left, right) -> None:
        super().__init__()
        self.left, self.right = left, right


class Wide:
    def __init__(self, *args, **kwargs) -> None:
        self.args, self.kwargs = args, kwargs


class Sizes(Hook):
    """Writes down the samples and the rate of every step."""

    def __init__(self) -> None:
        self.sizes, self.rates, self.threads, self.val = [], [], None, []

    def before_update(self, run):
        self.rates.append(run.engine.optimizers[""].param_groups[0]["lr"])

    def after_step(self, run):
        self.sizes.append(sum(run.sizes))
        self.threads = torch.get_num_threads()

    def before_val(self, run):
        self.val.append(run.step)


def data(count: int = 20):
    MADE.append("data")
    return TensorDataset(*samples(count))


def loader_of(batch_size: int, count: int = 20):
    return DataLoader(data(count), batch_size=batch_size)


def loader_without_size(count: int = 20):
    return DataLoader(data(count), batch_size=5)
'''

YAML = """\
model: {_target_: parts.Net, width: 8}
optimizer: {type: SGD, lr: 0.1}
criterion: CrossEntropyLoss
train_loader:
  _target_: torch.utils.data.DataLoader
  dataset: {_target_: parts.data, count: 20}
  batch_size: 4
val_loader:
  _target_: torch.utils.data.DataLoader
  dataset: {_target_: parts.data, count: 10}
  batch_size: 5
hooks:
  - {_target_: parts.Sizes}
run:
  epochs: 2
  progress: false
"""


def project(folder: Path, monkeypatch: Any, yaml: str = YAML) -> Path:
    """The folder with ``parts.py`` and ``cfg.yaml`` in it, made the current one."""
    monkeypatch.chdir(folder)
    monkeypatch.delitem(sys.modules, "parts", raising=False)
    (folder / "parts.py").write_text(PARTS)
    (folder / "cfg.yaml").write_text(yaml)
    importlib.invalidate_caches()
    return folder
