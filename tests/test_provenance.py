import json
import subprocess
import sys

import pytest
import torch

from stoker import hooks
from stoker.build import build_job
from stoker.config import load
from stoker.hooks.base.dispatch import HookList
from stoker.rundir.provenance import environment, git_state
from support.project import project


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    return project(tmp_path, monkeypatch)


def git(*words):
    who = ["-c", "user.name=a", "-c", "user.email=a@b.c", "-c", "commit.gpgsign=false"]
    done = subprocess.run(["git", *who, *words], check=True, capture_output=True, text=True)
    return done.stdout.strip()


@pytest.fixture
def repository(folder):
    git("init", "-q")
    (folder / ".gitignore").write_text("runs/\n__pycache__/\n")
    git("add", ".")
    git("commit", "-qm", "first")
    return folder


def test_outside_a_repository_there_is_no_state_of_git(folder):
    assert git_state() is None


def test_a_clean_repository_has_a_commit_and_no_diff(repository):
    assert git_state() == {"commit": git("rev-parse", "HEAD"), "dirty": False, "diff": ""}


def test_a_changed_repository_has_its_diff_which_applies(repository):
    (repository / "parts.py").write_text("changed = 'ü'\n")
    found = git_state()
    assert found["dirty"] is True
    assert "+changed = 'ü'" in found["diff"]
    (repository / "saved.patch").write_text(found["diff"])
    git("checkout", "-q", "parts.py")
    git("apply", "saved.patch")
    assert (repository / "parts.py").read_text() == "changed = 'ü'\n"


def test_staged_and_new_files_make_a_repository_dirty(repository):
    (repository / "new.py").write_text("x = 1\n")
    assert git_state()["dirty"] is True
    git("add", "new.py")
    assert "+x = 1" in git_state()["diff"]


def test_the_diff_is_complete_from_a_folder_below(repository, monkeypatch):
    (repository / "parts.py").write_text("changed = 1\n")
    (repository / "sub").mkdir()
    monkeypatch.chdir(repository / "sub")
    assert "+changed = 1" in git_state()["diff"]


def test_a_repository_without_a_commit_has_no_state(folder):
    git("init", "-q")
    assert git_state() is None


def test_the_environment_has_command_versions_and_hardware(folder, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["stoker", "train", "cfg.yaml", "optimizer.lr=1"])
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    found = environment()
    assert found["command"] == ["stoker", "train", "cfg.yaml", "optimizer.lr=1"]
    assert found["folder"] == str(folder)
    assert torch.__version__.startswith(found["packages"]["torch"].partition("+")[0])
    assert found["python"] == ".".join(map(str, sys.version_info[:3]))
    assert found["system"]["cpus"] >= 1
    assert found["variables"]["OMP_NUM_THREADS"] == "3"
    assert json.loads(json.dumps(found)) == found


def test_a_run_keeps_its_config_and_environment(repository):
    (repository / "parts.py").write_text((repository / "parts.py").read_text() + "# edited\n")
    config = load("cfg.yaml", ["optimizer.lr=0.25", "lr_scheduler=cosine"])
    build_job(config).fit()
    made = repository / "runs" / "cfg"
    again = load(made)
    assert again.tree == config.resolved()
    assert again.check() == config.check()
    assert again.tree["optimizer"]["lr"] == 0.25
    kept = json.loads((made / "env.json").read_text())
    assert kept["git"]["commit"] == git("rev-parse", "HEAD")
    assert kept["git"]["dirty"] is True
    assert "+# edited" in kept["git"]["diff"]
    assert kept["command"] == sys.argv


def test_a_run_that_fails_before_its_first_step_leaves_nothing(folder):
    model = "model={_target_: torch.nn.Linear, _args_: [5, 3]}"
    job = build_job(load(folder / "cfg.yaml", [model]))
    with pytest.raises(RuntimeError):
        job.fit()
    assert not (folder / "runs" / "cfg").exists()


def test_both_are_there_when_a_run_fails_later(folder):
    def fail(run):
        raise RuntimeError(f"at step {run.step}")

    job = build_job(load(folder / "cfg.yaml"))
    job.trainer.hooks = HookList(
        [*job.trainer.hooks, hooks.Callback(after_step=fail)], job.trainer.run
    )
    with pytest.raises(RuntimeError, match="at step 1"):
        job.fit()
    assert (folder / "runs" / "cfg" / "config.yaml").is_file()
    assert (folder / "runs" / "cfg" / "env.json").is_file()
