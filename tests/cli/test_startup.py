"""What `stoker train` imports on the way to its first step."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.process

PLAIN = """
import torch, sys
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
model = nn.Linear(4, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = TensorDataset(torch.rand(8, 4), torch.zeros(8, dtype=torch.int64))
for x, y in DataLoader(data, 4, shuffle=True):
    nn.CrossEntropyLoss()(model(x), y).backward()
    optimizer.step()
print(*sys.modules)
"""

CONFIG = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from stoker import Hook
from stoker.config import L


class Tell(Hook):
    def after_step(self, run):
        import sys

        print(*sys.modules)


def batches():
    data = TensorDataset(torch.rand(8, 4), torch.zeros(8, dtype=torch.int64))
    return DataLoader(data, 4, shuffle=True)


model = L(nn.Linear)(4, 3)
optimizer = L(torch.optim.SGD)(lr=0.1)
criterion = L(nn.CrossEntropyLoss)()
train_loader = L(batches)()
hooks = [L(Tell)()]
run = {"max_steps": 1}
"""


def imported(folder: Path, *command: str) -> set[str]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    output = subprocess.check_output(
        [sys.executable, *command], cwd=folder, text=True, env=environment
    )
    return set(next(line for line in output.splitlines() if "torch.nn" in line).split())


def test_the_first_step_needs_no_package_that_a_plain_script_does_not_but_four(tmp_path):
    (tmp_path / "config.py").write_text(CONFIG)
    more = imported(tmp_path, "-m", "stoker", "train", "config.py") - imported(
        tmp_path, "-c", PLAIN
    )
    packages = {name.split(".")[0] for name in more if name[0] != "_"} - sys.stdlib_module_names
    assert packages - {"config"} <= {"stoker", "numpy", "yaml", "safetensors", "xxhash"}
    heavy = ("torch._dynamo", "torch._inductor", "torch.distributed.checkpoint", "torch.onnx")
    assert [name for name in more if name.startswith(heavy)] == []
