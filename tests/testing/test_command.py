"""``stoker prove``: exit code 0 for the same bits, 1 for others, 2 for what cannot be tried."""

import shutil
from pathlib import Path

import pytest

from stoker.cli.main import main
from stoker.config import load
from stoker.testing import assert_resumes_exactly

pytestmark = pytest.mark.process

CONFIG = """
import torch
from torch import nn
from torch.utils.data import DataLoader
from stoker.config import L
from support.trainings import Counting, Points, net

model = L(net)()
criterion = L(nn.CrossEntropyLoss)()
optimizer = L(torch.optim.AdamW)(lr=0.01)
train_loader = L(DataLoader)(dataset=L(Points)(), batch_size=8, shuffle=True)
val_loader = L(DataLoader)(dataset=L(Points)(), batch_size=8)
run = dict(epochs=3, threads=1, seed=4, log_every=2)
"""


@pytest.fixture
def config(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "small.py"
    path.write_text(CONFIG)
    return path


def test_the_same_bits(config, capsys):
    assert main(["prove", str(config), "run.max_steps=12", "--kills", "3"]) == 0
    out = capsys.readouterr().out.splitlines()
    assert out[0] == "reference: running without kills"
    assert out[1].startswith("reference: 12 steps in ")
    assert all(f"attempt {n}: killed after step " in out[n + 1] for n in (1, 2, 3))
    assert out[5] == "attempt 4: finished"
    assert out[7] == "12 steps, killed 3 times: the same bits"
    assert list(config.parent.iterdir()) == [config]  # and nothing was written elsewhere


def test_other_bits(config, capsys):
    config.write_text(
        CONFIG.replace("L(net)()", "L(nn.Sequential)(L(Counting)(), L(nn.Linear)(6, 2))")
    )
    often = "run.checkpoint.every=1st"  # so that there is one to go on from
    words = ["prove", str(config), often, "--kills", "2", "--at", "step,data", "--seed", "1"]
    assert main(words) == 1
    out = capsys.readouterr().out
    assert "first difference: loss at step " in out
    assert "model 0: seen (int)" in out


def test_a_bad_config_is_refused(config, capsys):
    assert main(["prove", str(config), "optimizer.lrr=1"]) == 2
    assert main(["prove", str(config), "run.epochs=null"]) == 2
    assert "the run has no end" in capsys.readouterr().err
    config.write_text(CONFIG.replace("lr=0.01", "lr=-1.0"))
    assert main(["prove", str(config)]) == 2
    assert "Invalid learning rate: -1.0" in capsys.readouterr().err


def test_a_run_that_saves_nothing_is_refused(config, capsys):
    assert main(["prove", str(config), "run.dir=null"]) == 2
    assert "run.dir is null, so the run saves no checkpoints" in capsys.readouterr().err
    assert main(["prove", str(config), "run.default_hooks=false", "run.log_every=50"]) == 2
    assert "add hooks.Checkpoint()" in capsys.readouterr().err


def test_moments_that_do_not_exist_are_refused(config, capsys):
    assert main(["prove", str(config), "--at", "sav"]) == 2
    assert "did you mean 'save'" in capsys.readouterr().err
    assert main(["prove", str(config), "--kills", "0"]) == 2
    assert "--kills must be at least 1, got 0" in capsys.readouterr().err


def test_the_folder_is_kept_where_requested(config, capsys):
    assert main(["prove", str(config), "--kills", "1", "--keep"]) == 0
    folder = Path(capsys.readouterr().out.split("are kept in ")[1].splitlines()[0])
    assert (folder / "reference" / "run" / "small" / "metrics.jsonl").is_file()
    assert "resuming from" in (folder / "killed" / "run" / "small" / "log.txt").read_text()
    assert "epoch 3/3" in (folder / "killed" / "attempt-001.log").read_text()
    shutil.rmtree(folder)


def test_a_config_is_a_training_too(config):
    assert assert_resumes_exactly(config, kills=1).same
    assert assert_resumes_exactly(load(config, ["run.epochs=1"]), kills=1).steps == 5
