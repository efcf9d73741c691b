"""Runs whose place is an object store: resumed elsewhere, killed in every phase, and alone."""

import os
import re
import shutil
from itertools import count
from pathlib import Path

import pytest
import torch
from torch import nn

from stoker import Engine, Trainer, hooks
from stoker.checkpoint import CheckpointError, Checkpoints
from stoker.cli import main
from stoker.resume.weights import load_weights
from stoker.storage import blobs as blobs_module
from stoker.storage import open_storage
from stoker.storage.blobs import Blobs
from support.pool import pool
from support.server import run
from support.stored_run import train, train_apart
from support.stores import SECRET, environment

pytestmark = [pytest.mark.process]
pytest_plugins = ["support.store_fixtures"]

KILLED = -9
NAMES = count()
TESTS = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    return train(tmp_path_factory.mktemp("plain") / "run", 2)


def stored(url):
    return [path.name for path in Checkpoints(f"{url}/checkpoints").list()]


def move_to_another_machine(monkeypatch, tmp_path):
    monkeypatch.setenv("STOKER_CACHE", str(tmp_path / f"cache-{next(NAMES)}"))


def test_a_run_resumes_on_a_machine_with_an_empty_disk(
    url, expected, monkeypatch, tmp_path, capsys
):
    train(url, 1)
    move_to_another_machine(monkeypatch, tmp_path)
    assert train(url, 2) == expected
    assert stored(url)[-1] == "step-00000012"
    move_to_another_machine(monkeypatch, tmp_path)
    for words in (["ckpt", "ls", url], ["status", url], ["ckpt", "verify", url]):
        assert main(words) == 0
    shown = capsys.readouterr().out
    assert "12      2" in shown
    assert f"{url}: finished" in shown
    model = nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.1), nn.Linear(16, 1))
    assert not any(load_weights(model, url).values())
    assert not any(load_weights(model, f"{url}/model.safetensors").values())


PHASES = ["part-sent", "entry-written:8", "uploaded:2", "before-index:2", "index-written:2",
          "index-removed"]  # fmt: skip


@pytest.mark.parametrize("phase", PHASES)
def test_a_run_killed_in_an_upload_loses_nothing(url, expected, phase, proxy, tmp_path):
    env = {**os.environ, **environment(proxy.url)}
    words = ("-m", "support.stored_run", url, "2")
    killed = run(*words, env=env | {"STOKER_KILL_AT": phase}, cwd=TESTS)
    assert killed.returncode == KILLED, killed.stderr
    checkpoints = Checkpoints(f"{url}/checkpoints")
    assert not any(checkpoints.verify(path) for path in checkpoints.list())
    resumed = run(*words, env=env | {"STOKER_CACHE": str(tmp_path / "other")}, cwd=TESTS)
    assert resumed.stdout.strip() == expected, resumed.stderr
    parts = {one.key for one in Blobs(f"{url}/checkpoints").scan("objects/")}
    storage = open_storage(f"{url}/checkpoints")
    used = {f"objects/{key}" for name in storage.list() for key in storage.below(name).contents()}
    assert parts == used  # what the killed upload had sent is gone


def test_training_continues_without_its_store_and_ends_with_an_error(
    url, expected, proxy, monkeypatch, caplog
):
    monkeypatch.setattr(blobs_module, "PATIENCE", 0.2)
    monkeypatch.setattr(Blobs.__init__, "__defaults__", (0.2,))
    requests = count()
    proxy.fault = lambda method, path: "drop" if next(requests) > 60 else None
    with pytest.raises(CheckpointError, match="could not be copied to 's3://"):
        train(url, 2, upload_timeout=1.0)
    assert "training continues, and what is in the store stays" in caplog.text
    assert SECRET not in caplog.text
    proxy.fault = lambda method, path: None
    checkpoints = Checkpoints(f"{url}/checkpoints")
    assert not any(checkpoints.verify(path) for path in checkpoints.list())
    assert train(url, 2) == expected  # the same command finds nothing to train, and copies
    assert stored(url)[-1] == "step-00000012"


def test_less_is_uploaded_than_saved_and_the_newest_of_both_is_resumed(
    url, expected, monkeypatch, tmp_path
):
    with pytest.raises(ValueError, match="upload_every is '5st', but the run is not in an object"):
        train(tmp_path / "local", 1, upload_every="5st")
    train(url, 1, upload_every="5st")
    local = Checkpoints(tmp_path / "cache" / "runs" / cache_name() / url.removeprefix("s3://"))
    assert "step-00000003" not in stored(url)
    # the machine was killed before it could copy its last checkpoint
    open_storage(f"{url}/checkpoints").delete("step-00000006")
    assert train(url, 2, upload_every="5st") == expected
    shutil.rmtree(local.folder)
    assert train(url, 2) == expected


def cache_name():
    return "s3@" + os.environ["AWS_ENDPOINT_URL"].removeprefix("http://").replace(":", "_")


def test_another_run_of_the_same_name_goes_to_a_folder_of_its_own(url, monkeypatch, tmp_path):
    train(url, 1)
    move_to_another_machine(monkeypatch, tmp_path)
    other = Engine(model := nn.Linear(2, 1), torch.optim.SGD(model.parameters(), 0.1), nn.MSELoss())
    trainer = Trainer(other, [hooks.Checkpoint(None)], run_dir=url)
    trainer.fit([(torch.ones(1, 2), torch.ones(1, 1))], epochs=1)
    assert trainer.run.dir.name == url.rpartition("/")[2] + "-2"
    assert stored(f"{url}-2")[-1] == "step-00000001"


def test_the_command_that_training_suggests_evaluates_the_run_anywhere(
    url, monkeypatch, tmp_path, capsys
):
    monkeypatch.chdir(tmp_path)
    assert main(["new", "project"]) == 0
    monkeypatch.chdir("project")
    assert main(["train", "config.yaml", f"run.dir={url}", "run.epochs=1"]) == 0
    said = capsys.readouterr()
    assert f"the run is in {url}/project\n" in said.out + said.err
    (hint,) = re.findall(r"next: stoker (evaluate .*?), or", said.out + said.err)
    move_to_another_machine(monkeypatch, tmp_path)
    assert main(hint.split()) == 0
    assert f"weights of {url}/project/" in capsys.readouterr().err


def test_a_store_that_cannot_be_reached_is_named_before_anything_starts(url, monkeypatch, caplog):
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setattr("stoker.rundir.folder._PATIENCE", 0.2)
    with pytest.raises(CheckpointError, match=f"run_dir '{url}' cannot be read: no connection"):
        train(url, 1)


def test_ranks_without_a_common_disk_save_to_the_store_and_resume(url, proxy, tmp_path):
    variables = environment(proxy.url)
    first = pool().run(2, train_apart, url, str(tmp_path / "a"), variables, 1)
    assert first[0][1] == 4
    checkpoints = Checkpoints(f"{url}/checkpoints")
    assert not any(checkpoints.verify(path) for path in checkpoints.list())
    resumed = pool().run(2, train_apart, url, str(tmp_path / "b"), variables, 2)
    assert resumed[0][1] == 8
    straight = pool().run(2, train_apart, f"{url}-straight", str(tmp_path / "c"), variables, 2)
    assert resumed == straight
