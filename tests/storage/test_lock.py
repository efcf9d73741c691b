"""One live run per folder."""

import json
import os
import signal
import socket
import time

import pytest

from stoker.checkpoint import CheckpointError, Checkpoints
from stoker.storage.lock import _start_time
from support.checkpoint_states import KILLED, fork, save, state

pytestmark = pytest.mark.process


def hold(folder, ready, with_worker=False):
    checkpoints = Checkpoints(folder)
    checkpoints.open()
    if with_worker:
        worker = fork.Process(target=time.sleep, args=(30,), daemon=True)
        worker.start()
        ready.send(worker.pid)
    ready.send("open")
    time.sleep(30)


@pytest.fixture
def owner(tmp_path):
    here, there = fork.Pipe()
    process = fork.Process(target=hold, args=(tmp_path, there))
    process.start()
    assert here.recv() == "open"
    yield process
    process.kill()
    process.join()


def test_a_second_run_is_rejected_with_the_name_of_the_first(tmp_path, owner):
    who = f"is in use by process {owner.pid} on {socket.gethostname()}"
    with pytest.raises(CheckpointError, match=who):
        Checkpoints(tmp_path).save(1, state(1))
    assert Checkpoints(tmp_path).newest() is None


def test_a_killed_owner_does_not_block(tmp_path, owner, caplog):
    owner.kill()
    owner.join()
    assert owner.exitcode == KILLED
    save(tmp_path, 1)
    assert f"from process {owner.pid} on {socket.gethostname()}, which is gone" in caplog.text


def test_a_worker_that_outlives_its_killed_parent_does_not_block(tmp_path):
    here, there = fork.Pipe()
    process = fork.Process(target=hold, args=(tmp_path, there, True))
    process.start()
    worker = here.recv()
    assert here.recv() == "open"
    process.kill()
    process.join()
    try:
        os.kill(worker, 0)
        save(tmp_path, 1)
    finally:
        os.kill(worker, signal.SIGKILL)


def test_a_closed_folder_is_free_without_a_warning(tmp_path, caplog):
    save(tmp_path, 1)
    save(tmp_path, 2)
    assert "taking over" not in caplog.text


def test_one_process_cannot_open_a_folder_twice(tmp_path):
    with Checkpoints(tmp_path), pytest.raises(CheckpointError, match=f"process {os.getpid()} on"):
        Checkpoints(tmp_path).open()


def note(tmp_path, **owner):
    (tmp_path / ".lock").write_text(json.dumps(owner))


def test_an_id_that_was_given_to_another_process_counts_as_gone(tmp_path, caplog):
    note(tmp_path, pid=os.getpid(), host=socket.gethostname(), started="long/ago")
    save(tmp_path, 1)
    assert "taking over" in caplog.text


def test_where_the_system_has_no_locks_the_note_decides(tmp_path):
    note(tmp_path, pid=os.getpid(), host=socket.gethostname(), started=_start_time(os.getpid()))
    with pytest.raises(CheckpointError, match="is in use by process"):
        Checkpoints(tmp_path).open()


@pytest.mark.parametrize("text", ["", "{", "[]", "{}"])
def test_a_torn_note_is_no_owner(tmp_path, text):
    (tmp_path / ".lock").write_text(text)
    save(tmp_path, 1)
