"""What a person sees of a job on Ray or Spark: each line once, and nothing of the engine's own."""

import re
import subprocess
import sys
from importlib import import_module

import pytest

from stoker.launch.launchers import ray as launcher

CONFIG = """
model: {_target_: net.Net}
optimizer: {type: SGD, lr: 0.1}
criterion: CrossEntropyLoss
train_loader: {_target_: net.loader}
val_loader: {_target_: net.loader}
run: {epochs: 2, threads: 1}
"""
NET = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

class Net(nn.Linear):
    def __init__(self):
        super().__init__(4, 3)

def loader():
    return DataLoader(TensorDataset(torch.ones(8, 4), torch.arange(8) % 3), batch_size=2)
"""
EPOCH = r"epoch {}/2  step {}  train/loss [\d.]+  val/loss [\d.]+  [\d.]+ s"


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.parametrize(
    "engine",
    [pytest.param("ray", marks=pytest.mark.ray), pytest.param("spark", marks=pytest.mark.spark)],
)
def test_each_line_is_printed_once_and_none_by_the_engine(engine, tmp_path):
    (tmp_path / "cfg.yaml").write_text(CONFIG)
    (tmp_path / "net.py").write_text(NET)
    command = [sys.executable, "-m", "stoker", "train", "cfg.yaml", "--on", engine]
    done = subprocess.run(
        [*command, "--workers", "2"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "the run is in runs/cfg",
        "next: stoker evaluate cfg.yaml, or change a value: stoker train cfg.yaml optimizer.lr=…",
    ]
    lines = done.stderr.splitlines()
    assert len(lines) == 2, done.stderr
    for number, line in enumerate(lines, 1):
        assert re.fullmatch(EPOCH.format(number, 2 * number), line), line


@pytest.mark.slow
@pytest.mark.parametrize("printed", [True, False])
def test_a_script_that_has_started_ray_keeps_its_own_printing_afterwards(printed, capsys):
    dispatcher = import_module("ray._private.ray_logging").global_worker_stdstream_dispatcher
    before, seen = dispatcher.handlers, []
    dispatcher.handlers = [(launcher._HANDLER, seen.append)] if printed else []
    lines = {"lines": ["Failed to query"], "is_err": False, "actor_name": "Cleaner"}
    try:
        with launcher._only_ranks():
            dispatcher.emit(lines)
            dispatcher.emit(lines | {"lines": ["epoch 1"], "actor_name": "RayTrainWorker"})
        assert seen == []
        dispatcher.emit(lines)
    finally:
        dispatcher.handlers = before
    assert capsys.readouterr().out == ("epoch 1\n" if printed else "")
    assert len(seen) == printed
