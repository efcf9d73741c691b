"""The same proof for trainings of several processes: each of them must have the same bits."""

import itertools
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from stoker import Engine, Hook, Layout, Trainer, hooks, seed_all
from stoker.cli.main import main
from stoker.core import dist
from stoker.core.errors import StokerError
from stoker.events import JsonLines
from stoker.nn import lr
from stoker.testing import assert_resumes_exactly, prove
from support.trainings import Counting, Points

pytestmark = pytest.mark.process

CONFIG = """
import torch
from torch import nn
from torch.utils.data import DataLoader
from stoker.config import L
from testing.test_prove_ranks import layers
from support.trainings import Points

model = L(layers)()
criterion = L(nn.CrossEntropyLoss)()
optimizer = L(torch.optim.AdamW)(lr=0.01)
train_loader = L(DataLoader)(dataset=L(Points)(), batch_size=4, shuffle=True)
val_loader = L(DataLoader)(dataset=L(Points)(), batch_size=4)
run = dict(epochs=2, seed=4, log_every=2, checkpoint=dict(every="2st"))
"""


def layers(*more: nn.Module) -> nn.Module:
    blocks = [nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.3)) for _ in range(2)]
    return nn.Sequential(*more, nn.Linear(6, 8), nn.Sequential(*blocks), nn.Linear(8, 2))


def training(*extra, data=Points, more=(), layout: Layout | None = None):
    """A function that trains for 6 steps in the run folder it is given."""

    def train(run_dir: Path) -> None:
        seed_all(7)
        model = layers(*[kind() for kind in more])
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        engine = Engine(
            model, optimizer, nn.CrossEntropyLoss(), layout=layout,
            lr_scheduler=lr.cosine(optimizer, 6, warmup_steps=3),
        )  # fmt: skip
        own = [
            hooks.Loss(), hooks.LR(), hooks.EMA(0.9), hooks.Metrics("accuracy"),
            hooks.Write(JsonLines(), every=2), hooks.Checkpoint("1st", keep=2),
            *[kind() for kind in extra],
        ]  # fmt: skip
        loader = DataLoader(data(), batch_size=4, shuffle=True)
        trainer = Trainer(engine, own, accumulate=2, run_dir=run_dir)
        trainer.fit(loader, DataLoader(Points(12), 4), max_steps=6, validate_every="3st")

    return train


def test_copies_of_a_model_that_resume_exactly_pass():
    verdict = assert_resumes_exactly(training(), kills=4, nproc=2)
    assert verdict.same
    assert (verdict.steps, verdict.processes, len(verdict.kills)) == (6, 2, 4)
    assert {kill.where[:6] for kill in verdict.kills} == {"rank 0", "rank 1"}
    assert verdict.compared["weights"] == 2 * 7 * 8  # by both, after each step and at the end
    assert verdict.text().startswith("6 steps in 2 processes, killed 4 times: the same bits\n")


@pytest.mark.parametrize(("how", "steps"), [("replicate", 10), ("shard", 10), ("pipeline", 20)])
def test_a_config_with_a_layout(how, steps, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("small.py").write_text(CONFIG)
    code = main(["prove", "small.py", f"run.parallel.{how}=2", "--nproc", "2", "--kills", "2"])
    out = capsys.readouterr().out
    assert code == 0, out
    assert f"{steps} steps in 2 processes, killed 2 times: the same bits" in out


class Swaying(Hook):
    """Has rank 1 draw the more the longer it runs, and forgets how long that is."""

    same_on_all_ranks = True

    def __init__(self) -> None:
        self.drawn = 0

    def state_dict(self):
        return {}

    def before_step(self, run) -> None:
        self.drawn += dist.rank()
        torch.rand(self.drawn)


class NoiseOfOne(Points):
    """Rank 1 reads its samples with a counter that nobody can save."""

    def __init__(self) -> None:
        super().__init__()
        self.reads = 0
        self.count = itertools.count(1)

    def __getitem__(self, index: int):
        x, y = super().__getitem__(index)
        if dist.rank():
            self.reads = next(self.count)
        return x + self.reads, y


def test_a_hook_of_one_process_that_forgets_is_named_with_its_rank(tmp_path):
    difference = prove(training(Swaying), tmp_path, kills=1, at=["step"], nproc=2).difference
    assert difference.what.startswith("rank 1: loss at step ")
    assert difference.suspects == ("hook Swaying: drawn (int)",)


def test_data_of_one_process_that_forgets_is_named_with_its_rank(tmp_path):
    verdict = prove(training(data=NoiseOfOne), tmp_path, kills=1, at=["step"], nproc=2)
    assert verdict.difference.what.startswith("rank 1: batch contents in epoch ")
    assert verdict.difference.suspects[0] == "dataset of train_loader: reads (int)"


def test_the_first_stage_of_a_pipeline_that_forgets_is_named(tmp_path):
    made = training(more=[Counting], layout=Layout(pipeline=2))
    difference = prove(made, tmp_path, kills=1, at=["step"], nproc=2).difference
    assert difference.what.startswith("rank 1: loss at step ")
    assert difference.suspects == ("rank 0: model 0: seen (int)",)


class FailsOnRankOne(Hook):
    def load_state_dict(self, state) -> None:
        if dist.rank() == 1:
            raise KeyError("scale")


def test_a_process_that_cannot_continue_is_named(tmp_path):
    verdict = prove(training(FailsOnRankOne), tmp_path, kills=1, nproc=2)
    assert verdict.difference.what.startswith("attempt 2 failed: ")
    assert "rank 1: KeyError: 'scale'" in verdict.difference.what


def test_an_error_of_one_process_is_shown():
    def train(run_dir):
        dist.connect()
        print(f"I am {dist.rank()}")
        if dist.rank() == 1:
            raise OSError("no data")
        dist.any_rank(True)

    with pytest.raises(StokerError, match=r"(?s)run failed: rank 1: OSError: no data.*I am 1"):
        assert_resumes_exactly(train, nproc=2)


def test_a_job_of_no_process_is_refused(capsys, tmp_path, monkeypatch):
    with pytest.raises(ValueError, match="nproc must be at least 1, got 0"):
        assert_resumes_exactly(training(), nproc=0)
    monkeypatch.chdir(tmp_path)
    Path("small.py").write_text(CONFIG)
    assert main(["prove", "small.py", "--nproc", "0"]) == 2
    assert "--nproc must be at least 1, got 0" in capsys.readouterr().err
