"""Whether a run lives is told by its lock, its log and the age of its files."""

import json
import os
import signal
import threading
import time
from dataclasses import asdict, replace

import pytest

from stoker.board.runs import Runs
from stoker.storage.lock import Lock, Owner
from support.board_runs import make_run, said
from support.server import run

STAMP = "2026-01-01 00:00:00 INFO "


def status(root, name="one"):
    runs = Runs(root)
    runs.refresh(60)
    return runs[name].status


@pytest.mark.parametrize(
    ("last", "state", "why"),
    [
        (said("finished"), "finished", ""),
        (said("early stopping: val/loss has not improved"), "stopped", "early stopping"),
        (said("pruned at val/loss 0.5"), "stopped", "pruned at"),
        (said("preempted by SIGTERM"), "preempted", "preempted by SIGTERM"),
        (said("interrupted by Ctrl-C"), "stopped", "interrupted"),
        ("the run failed at step 7\nTraceback:\nValueError: no", "failed", "ValueError: no"),
    ],
)
def test_the_last_words_of_a_log_show_how_a_run_ended(tmp_path, last, state, why):
    make_run(tmp_path, "one", log=f"{STAMP}a line\n{STAMP}{last}\n")
    found = status(tmp_path)
    assert found.state == state
    assert found.why.startswith(why)


def test_a_run_whose_process_lives_runs_however_quiet_it_is(tmp_path):
    folder = make_run(tmp_path, "one", log=f"{STAMP}{said('finished', 10)}\n")
    (folder / "checkpoints").mkdir()
    for path in folder.glob("*.*"):
        os.utime(path, (1e9, 1e9))
    lock = Lock(folder / "checkpoints")
    lock.acquire()
    assert status(tmp_path).state == "running"
    lock.release()
    assert status(tmp_path).state == "finished"


@pytest.mark.slow
def test_a_run_whose_process_was_killed_is_dead_at_once(tmp_path):
    folder = make_run(tmp_path, "one", log=f"{STAMP}going on\n")
    (folder / "checkpoints").mkdir()
    code = f"from stoker.storage.lock import Lock; from pathlib import Path; import os; \
Lock(Path({str(folder / 'checkpoints')!r})).acquire(); os.kill(os.getpid(), 9)"
    assert run("-c", code).returncode == -signal.SIGKILL
    found = status(tmp_path)
    assert found.state == "dead"
    assert "died without logging an end" in found.why


def test_a_run_on_another_machine_is_rated_by_the_age_of_its_files(tmp_path):
    folder = make_run(tmp_path, "one", log=f"{STAMP}going on\n")
    lease = folder / "checkpoints" / ".lock" / "00000001.json"
    lease.parent.mkdir(parents=True)
    owner = replace(Owner.this_process(), host="far", kernel="other/1")
    lease.write_text(json.dumps(asdict(owner)))
    for path in folder.glob("*.*"):
        os.utime(path, (time.time() - 3600,) * 2)
    assert status(tmp_path).state == "running"  # it renews its lease
    os.utime(lease, (time.time() - 3600,) * 2)
    assert status(tmp_path).state == "dead"


def test_a_run_never_waits_for_those_who_look_at_it(tmp_path):
    folder = make_run(tmp_path, "one")
    (folder / "checkpoints").mkdir()
    runs, done = Runs(tmp_path), threading.Event()

    def refresh():
        while not done.is_set():
            runs.refresh()

    thread = threading.Thread(target=refresh)
    thread.start()
    for _ in range(200):
        lock = Lock(folder / "checkpoints")
        lock.acquire()  # raises where somebody else holds it
        os.truncate(folder / "metrics.jsonl", 500)
        lock.release()
    done.set()
    thread.join()


def test_progress_and_the_time_left_are_reported(tmp_path):
    log = f"{STAMP}epoch 2/8  step 20  train/loss 0.05  1.0 s\n"
    make_run(tmp_path, "one", config="run: {epochs: 8}", log=log)
    found = status(tmp_path)
    assert (found.state, found.step, found.total, found.epoch, found.epochs) == (
        "running", 20, 80, 2, 8)  # fmt: skip
    assert found.eta == pytest.approx(60.0)


def test_an_epoch_that_was_cut_short_is_no_measure_of_the_others(tmp_path):
    lines = ("epoch 1/8  step 10", "epoch 2/8  step 14", said("preempted by SIGTERM", 14))
    make_run(tmp_path, "one", config="{}", log="".join(f"{STAMP}{line}\n" for line in lines))
    assert (status(tmp_path).total, status(tmp_path).epochs) == (80, 8)


def test_steps_that_bound_a_run_bound_its_progress(tmp_path):
    make_run(tmp_path, "one", config="run: {max_steps: 40}", log=f"{STAMP}begins\n")
    assert status(tmp_path).total == 40


def test_the_best_result_is_that_of_validation(tmp_path):
    make_run(tmp_path, "one")
    runs = Runs(tmp_path)
    runs.refresh(60)
    assert runs["one"].best() == {"name": "val/accuracy", "value": 0.95, "step": 20, "mode": "max"}


def test_the_best_result_is_the_one_the_config_names(tmp_path):
    make_run(tmp_path, "one", config="run: {checkpoint: {best: train/loss}}")
    runs = Runs(tmp_path)
    runs.refresh(60)
    assert runs["one"].best()["name"] == "train/loss"


def test_a_run_that_cannot_be_looked_at_leaves_the_others_alone(tmp_path, monkeypatch):
    make_run(tmp_path, "bad")
    make_run(tmp_path, "good")
    runs = Runs(tmp_path)

    def fail(seconds):
        raise RuntimeError("no")

    monkeypatch.setattr(runs["bad"].metrics, "refresh", fail)
    runs.refresh(60)
    assert runs["bad"].summary()["faults"] == ["the run cannot be read: RuntimeError"]
    assert runs["good"].summary()["status"]["state"] == "finished"
