"""The examples of Colossal-AI's documents, made to run: by import rename, and as they are."""

import os
import runpy
import sys
from pathlib import Path

import pytest
import torch

from stoker.checkpoint import Checkpoints
from stoker.dialects.colossalai.core import global_context as gpc
from support.dialect_scripts import SCRIPTS, renamed
from support.killable_run import differences
from support.server import run

pytestmark = pytest.mark.process

ROOT = Path(__file__).parents[2]


def unmodified(script, folder, *args, options=()):
    env = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
    return run("-m", "stoker", "run", *options, str(SCRIPTS / script), *args, cwd=folder, env=env)


@pytest.fixture
def no_config():
    gpc.config = type(gpc.config)()


@pytest.mark.row("C05")
@pytest.mark.usefixtures("no_config")
def test_the_eight_hooks_run_without_launcher_or_config(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["script", "2", "--own-loop"])
    runpy.run_path(str(renamed("colossalai_objects.py", tmp_path)), run_name="__main__")
    assert capsys.readouterr().out.startswith("accuracy 0.")
    log = (tmp_path / "logs" / "rank_0.log").read_text()
    for words in ("Using LossHook for training, priority = 0", "[Epoch 2 / Test]: Loss = ",
                  "Train-step: last = ", "memory host at most"):  # fmt: skip
        assert words in log
    assert len(Checkpoints(tmp_path / "ckpt").list()) == 3
    assert sorted(p.name for p in (tmp_path / "ckpt").glob("*.pt")) == [
        "epoch1-tp0-pp0.pt", "epoch2-tp0-pp0.pt",
    ]  # fmt: skip
    assert list((tmp_path / "tb_logs" / "global_rank_0").glob("events*"))


@pytest.mark.row("Z04")
@pytest.mark.usefixtures("no_config")
def test_hooks_as_dicts_run_by_import_rename(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(renamed("colossalai_dicts.py", tmp_path)), run_name="__main__")
    assert capsys.readouterr().out == "epochs 21 norm True\n"


def test_a_script_as_it_is_that_is_killed_and_run_again_ends_with_the_same_bits(tmp_path):
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    whole.mkdir()
    cut.mkdir()
    done = unmodified("colossalai_objects.py", whole, "3")
    assert done.returncode == 0, done.stderr
    killed = unmodified("colossalai_objects.py", cut, "3", "--die-at=60")
    assert killed.returncode == 9, killed.stderr
    again = unmodified("colossalai_objects.py", cut, "3")
    assert again.returncode == 0, again.stderr
    assert "resuming from" in again.stderr
    one, other = torch.load(whole / "weights.pt"), torch.load(cut / "weights.pt")
    assert all(torch.equal(one[name], other[name]) for name in one)
    lines = [
        [line for line in (folder / "logs" / "rank_0.log").read_text().splitlines()
         if "Loss = " in line and "[Epoch 3" in line]
        for folder in (whole, cut)
    ]  # fmt: skip
    assert lines[0] == lines[1] != []


@pytest.mark.parametrize("ranks", [1, 2], ids=["one process", "stages cut by the script"])
def test_a_config_whose_run_is_killed_ends_with_the_same_bits_when_run_again(tmp_path, ranks):
    folders = tmp_path / "whole", tmp_path / "cut"
    more = ["--nproc", "2"] if ranks == 2 else []
    words = ["--stages"] if ranks == 2 else []

    def train(folder, *args):
        folder.mkdir(exist_ok=True)
        return unmodified("colossalai_config.py", folder, *words, *args, options=more)

    whole, killed, again = train(folders[0]), train(folders[1], "--kill-at=9"), train(folders[1])
    assert (whole.returncode, again.returncode) == (0, 0), whole.stderr + again.stderr
    assert killed.returncode in (-9, 137) or "SIGKILL" in killed.stderr, killed.stderr
    assert "resuming from" in again.stderr
    for rank in range(ranks):
        one, other = (torch.load(folder / f"rank{rank}.pt") for folder in folders)
        assert one["lr"] == 21
        assert differences(one, other) == []
