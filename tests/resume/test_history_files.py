"""The history of a long run: in files of its own, complete after every resume."""

import json
import shutil

import pytest
import torch
from torch import nn

from stoker import Engine, Trainer, hooks
from stoker.resume import history_files

BATCH = (torch.ones(1, 1), torch.ones(1, 1))


@pytest.fixture(autouse=True)
def short_files(monkeypatch):
    monkeypatch.setattr(history_files, "_EPOCHS", 4)


def trained(run_dir, epochs, *, every="1ep", resume="auto"):
    torch.manual_seed(0)
    model = nn.Linear(1, 1)
    engine = Engine(model, torch.optim.SGD(model.parameters(), lr=0.1), nn.MSELoss())
    trainer = Trainer(engine, [hooks.Loss(), hooks.Checkpoint(every, keep=None)], run_dir=run_dir)
    return trainer.fit([BATCH], epochs=epochs, resume=resume)


def in_checkpoint(run_dir, step):
    path = run_dir / "checkpoints" / f"step-{step:08}" / "state.json"
    return json.loads(path.read_text())["history"]


def test_a_checkpoint_holds_the_newest_epochs_and_names_the_files_of_the_others(tmp_path):
    history = trained(tmp_path / "run", 10)
    held = in_checkpoint(tmp_path / "run", 10)
    assert len(held["files"]) == 2
    assert [json.loads(line)["epoch"] for line in held["rows"].splitlines()] == [9, 10]
    assert in_checkpoint(tmp_path / "run", 3)["files"] == []
    assert [row["epoch"] for row in history] == [*range(1, 11)]


def test_a_save_writes_no_more_epochs_after_many_than_after_few(tmp_path):
    trained(tmp_path / "run", 43)
    held = [in_checkpoint(tmp_path / "run", step)["rows"] for step in (3, 23, 43)]
    assert [len(rows.splitlines()) for rows in held] == [3, 3, 3]


def test_the_history_is_complete_after_a_resume_and_its_files_are_not_written_again(tmp_path):
    straight = trained(tmp_path / "straight", 14)
    trained(tmp_path / "run", 9)
    files = {path: path.stat().st_mtime_ns for path in (tmp_path / "run/history").iterdir()}
    resumed = trained(tmp_path / "run", 14)
    assert list(resumed) == list(straight)
    assert {path: path.stat().st_mtime_ns for path in files} == files


def test_an_older_checkpoint_is_not_changed_by_what_followed(tmp_path):
    straight = trained(tmp_path / "run", 14)
    for step in range(6, 15):
        shutil.rmtree(tmp_path / "run" / "checkpoints" / f"step-{step:08}")
    assert list(trained(tmp_path / "run", 14)) == list(straight)


def test_a_run_that_starts_from_the_checkpoint_of_another_has_a_history_of_its_own(tmp_path):
    straight = trained(tmp_path / "straight", 12)
    trained(tmp_path / "first", 9)
    checkpoint = tmp_path / "first" / "checkpoints" / "step-00000009"
    trained(tmp_path / "second", 10, resume=checkpoint)
    shutil.rmtree(tmp_path / "first")
    assert list(trained(tmp_path / "second", 12, resume=checkpoint)) == list(straight)


@pytest.mark.parametrize("damage", ["missing", "changed"])
def test_a_missing_or_changed_file_is_reported_and_later_epochs_stay(tmp_path, damage, caplog):
    trained(tmp_path / "run", 9)
    first, _ = sorted((tmp_path / "run" / "history").iterdir())
    first.unlink() if damage == "missing" else first.write_text("{}\n")
    resumed = trained(tmp_path / "run", 11)
    assert [row["epoch"] for row in resumed] == [5, 6, 7, 8, 9, 10, 11]
    assert f"'{first}' is missing or damaged" in caplog.text


def test_a_name_that_leaves_the_folder_is_refused(tmp_path):
    with pytest.raises(ValueError, match="is not the name of a file"):
        history_files.read_history({"files": ["../../secret"], "rows": ""}, tmp_path / "a" / "b")


def test_a_history_that_the_script_clears_is_saved_as_it_is(tmp_path):
    torch.manual_seed(0)
    model = nn.Linear(1, 1)
    engine = Engine(model, torch.optim.SGD(model.parameters(), lr=0.1), nn.MSELoss())
    trainer = Trainer(engine, [hooks.Loss(), hooks.Checkpoint("1ep")], run_dir=tmp_path / "run")
    trainer.fit([BATCH], epochs=9)
    trainer.history.clear()
    trainer.fit([BATCH], epochs=11)
    assert in_checkpoint(tmp_path / "run", 11)["files"] == []
    assert list(trained(tmp_path / "run", 11)) == list(trainer.history)


def test_a_checkpoint_saved_by_hand_holds_all_of_the_history(tmp_path):
    torch.manual_seed(0)
    model = nn.Linear(1, 1)
    engine = Engine(model, torch.optim.SGD(model.parameters(), lr=0.1), nn.MSELoss())
    trainer = Trainer(engine, [hooks.Loss()])
    trainer.fit([BATCH], epochs=9)
    path = trainer.save(tmp_path / "saved")
    held = json.loads((path / "state.json").read_text())["history"]
    assert held["files"] == []
    assert len(held["rows"].splitlines()) == 9
