"""A Towhee training that is killed and started again ends at the same bits.

``make kills`` kills it with both periods of saves at each point; otherwise with one of them.
"""

import multiprocessing
import os
import signal
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import stoker
from stoker.core.errors import CheckpointError
from stoker.dialects.towhee import folders
from stoker.dialects.towhee.trainer.callback import Callback
from stoker.dialects.towhee.trainer.trainer import Trainer
from stoker.dialects.towhee.trainer.training_config import TrainingConfig
from support.killable_run import Noisy, same
from support.sample import one_of_each

pytestmark = pytest.mark.process


class Kill(Callback):
    """Ends the process at the n-th call of a point."""

    def __init__(self, point: str, nth: int, number: int) -> None:
        self.left, self.number = nth, number
        self.point = point

    def count(self, *_):
        self.left -= 1
        if self.left == 0:
            os.kill(os.getpid(), self.number)


def kills_at(point: str, nth: int, number: int) -> Kill:
    kind = type("Kill", (Kill,), {point: Kill.count})
    return kind(point, nth, number)


def made(folder: Path, saving: dict, kind=Trainer) -> Trainer:
    torch.set_num_threads(1)
    torch.manual_seed(7)
    model = nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.Dropout(0.4), nn.Linear(16, 2))
    config = TrainingConfig(
        output_dir=str(folder),
        epoch_num=3,
        lr=0.01,
        print_steps=1,
        tensorboard=None,
        eval_strategy="steps",
        eval_steps=3,
        model_checkpoint=saving,
        load_best_model_at_end=True,
    )
    return kind(model, config, Noisy(36), Noisy(10))


def result(trainer: Trainer, folder: Path) -> dict:
    return {
        "weights": trainer.model.state_dict(),
        "optimizer": trainer.optimizer.state_dict(),
        "logs": dict(trainer.logs),
        "epoch": trainer.epoch,
        "schedule": trainer.lr_scheduler.last_epoch,
        "final": torch.load(folder / "final_epoch" / "model.pth", weights_only=True),
        "draws": torch.rand(2),
    }


def child(folder: Path, saving: dict, where: tuple) -> None:
    trainer = made(folder, saving)
    if where[0] == "publish":
        folders.publish = lambda *_: os.kill(os.getpid(), where[2])
    else:
        trainer.add_callback(kills_at(*where))
    trainer.train()


def killed(folder: Path, saving: dict, where: tuple) -> int:
    context = multiprocessing.get_context("fork")
    process = context.Process(target=child, args=(folder, saving, where))
    process.start()
    process.join()
    return process.exitcode


PLACES = [
    ("on_train_batch_end", 3, signal.SIGKILL),
    ("on_train_batch_end", 6, signal.SIGKILL),
    ("on_eval_batch_end", 3, signal.SIGKILL),
    ("on_epoch_end", 2, signal.SIGKILL),
    ("on_train_end", 1, signal.SIGKILL),
    ("on_train_batch_end", 7, signal.SIGTERM),
    ("publish", 1, signal.SIGKILL),
]
CASES = [(where, period) for where in PLACES for period in ("every_n_epoch", "every_n_iteration")]


@pytest.mark.parametrize(
    ("where", "period"),
    one_of_each("STOKER_KILLS", CASES, lambda case: case[0]),
    ids=lambda one: one if isinstance(one, str) else f"{one[0]}-{one[1]}-{one[2].name}",
)
def test_a_killed_training_ends_at_the_same_bits(tmp_path, where, period, capsys):
    saving = {period: 1}
    whole = made(tmp_path / "whole", saving)
    whole.train()
    expected, lines = result(whole, tmp_path / "whole"), capsys.readouterr().out.splitlines()
    code = killed(tmp_path / "cut", saving, where)
    assert code == (143 if where[2] == signal.SIGTERM else -signal.SIGKILL)
    capsys.readouterr()
    again = made(tmp_path / "cut", saving)
    again.train()
    found = result(again, tmp_path / "cut")
    assert [name for name in expected if not same(expected[name], found[name])] == []
    saved = [sorted(p.name for p in (tmp_path / one).iterdir()) for one in ("whole", "cut")]
    assert saved[0] == saved[1]
    shown = capsys.readouterr().out.splitlines()
    assert lines[len(lines) - len(shown) :] == shown


def test_what_was_cut_short_starts_from_scratch_with_another_config(tmp_path, caplog):
    saving = {"every_n_iteration": 1}
    killed(tmp_path / "cut", saving, ("on_train_batch_end", 3, signal.SIGKILL))
    again = made(tmp_path / "cut", saving)
    again.configs.lr = 0.02
    again.train()
    assert "lr differ: starting from scratch" in caplog.text
    fresh = made(tmp_path / "fresh", saving)
    fresh.configs.lr = 0.02
    fresh.train()
    assert same(again.model.state_dict(), fresh.model.state_dict())


def test_what_was_cut_short_stays_until_another_training_begins(tmp_path, monkeypatch):
    saving = {"every_n_iteration": 1}
    killed(tmp_path / "cut", saving, ("on_train_batch_end", 3, signal.SIGKILL))
    before = sorted((tmp_path / "cut").rglob("*"))
    again = made(tmp_path / "cut", saving)
    again.configs.lr = 0.02
    with monkeypatch.context() as patch:  # as `stoker run --explain` does
        patch.setattr(stoker.Trainer, "fit", lambda *_, **__: sys.exit(0))
        with pytest.raises(SystemExit):
            again.train()
    assert sorted((tmp_path / "cut").rglob("*")) == before


def test_a_training_does_not_replace_one_that_is_in_progress(tmp_path):
    class Second(Callback):
        def on_train_batch_end(self, batch, logs):
            if logs["global_step"] == 3:
                other = made(tmp_path, {"every_n_iteration": 1})
                other.configs.lr = 0.02
                with pytest.raises(CheckpointError, match="is in use"):
                    other.train()

    saving = {"every_n_iteration": 1}
    first = made(tmp_path, saving)
    first.add_callback(Second())
    first.train()
    assert (tmp_path / "final_epoch" / "model.pth").is_file()


def test_a_failed_training_resumes_in_the_same_process(tmp_path):
    class Once(Callback):
        def __init__(self):
            self.failed = False

        def on_train_batch_end(self, batch, logs):
            if logs["global_step"] == 6 and not self.failed:
                self.failed = True
                raise RuntimeError("lost the disk")

    saving = {"every_n_iteration": 1}
    trainer = made(tmp_path / "cut", saving)
    trainer.add_callback(Once())
    with pytest.raises(RuntimeError, match="lost the disk"):
        trainer.train()
    trainer.train()
    whole = made(tmp_path / "whole", saving)
    whole.train()
    assert same(trainer.model.state_dict(), whole.model.state_dict())
    assert same(trainer.optimizer.state_dict(), whole.optimizer.state_dict())
