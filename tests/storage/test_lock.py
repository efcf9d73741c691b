"""One live run per folder."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from dataclasses import asdict, replace

import pytest

from stoker.checkpoint import CheckpointError, Checkpoints
from stoker.storage import LocalStorage, lock
from stoker.storage.lock import Lock, Owner
from support.checkpoint_states import KILLED, fork, in_child, number_in, save, state

pytestmark = pytest.mark.process


def hold(folder, ready, with_worker=False):
    checkpoints = Checkpoints(folder)
    checkpoints.open()
    if with_worker:
        worker = fork.Process(target=time.sleep, args=(600,), daemon=True)
        worker.start()
        ready.send(worker.pid)
    ready.send("open")
    time.sleep(600)


@pytest.fixture
def owner(tmp_path):
    here, there = fork.Pipe()
    process = fork.Process(target=hold, args=(tmp_path, there))
    process.start()
    assert here.recv() == "open"
    yield process
    process.kill()
    process.join()


@pytest.fixture
def short(monkeypatch):
    monkeypatch.setattr(lock, "PERIOD", 1.0)


def lease_of(folder):
    (path,) = (folder / ".lock").glob("*.json")
    return lock.parse_owner(path.read_bytes())


def note(folder, **fields):
    """Leave the lease of another process."""
    (folder / ".lock").mkdir()
    owner = asdict(replace(Owner.this_process(), **fields))
    (folder / ".lock" / "00000004.json").write_text(json.dumps(owner))


def test_a_second_run_is_rejected_with_the_name_of_the_first(tmp_path, owner):
    who = rf"is in use by process {owner.pid} on {socket.gethostname()} since .* last renewed .*: w"
    with pytest.raises(CheckpointError, match=who):
        Checkpoints(tmp_path).save(1, state(1))
    assert Checkpoints(tmp_path).newest() is None


def test_a_killed_owner_does_not_block(tmp_path, owner, caplog):
    owner.kill()
    owner.join()
    assert owner.exitcode == KILLED
    save(tmp_path, 1)
    assert f"from process {owner.pid} on {socket.gethostname()}, which is gone" in caplog.text
    assert "waiting" not in caplog.text


def test_a_stopped_owner_is_alive(tmp_path, owner, short):
    os.kill(owner.pid, signal.SIGSTOP)
    with pytest.raises(CheckpointError, match=f"is in use by process {owner.pid}"):
        Checkpoints(tmp_path).open()


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


def test_a_forked_child_cannot_release_the_lease_of_its_parent(tmp_path):
    with Checkpoints(tmp_path) as checkpoints:
        assert in_child(checkpoints.close) == 0
        with pytest.raises(CheckpointError, match="is in use by process"):
            Checkpoints(tmp_path).open()


def test_a_closed_folder_is_free_without_a_warning(tmp_path, caplog):
    save(tmp_path, 1)
    save(tmp_path, 2)
    assert "taking over" not in caplog.text
    assert lease_of(tmp_path).released


def test_one_process_cannot_open_a_folder_twice(tmp_path):
    with Checkpoints(tmp_path), pytest.raises(CheckpointError, match=f"process {os.getpid()} on"):
        Checkpoints(tmp_path).open()


def test_an_id_that_was_given_to_another_process_counts_as_gone(tmp_path, caplog):
    note(tmp_path, started="1")
    save(tmp_path, 1)
    assert "taking over" in caplog.text
    assert "waiting" not in caplog.text


@pytest.mark.parametrize(
    "elsewhere", [{"host": "far", "kernel": "other/1"}, {"kernel": "other/1"}, {"kernel": None}]
)
def test_an_owner_that_cannot_be_seen_is_gone_after_a_period_without_renewal(
    tmp_path, short, caplog, elsewhere
):
    note(tmp_path, **elsewhere, renewed=time.time() + 1e6)  # clocks of hosts are not compared
    began = time.monotonic()
    save(tmp_path, 1)
    assert time.monotonic() - began >= 1.0
    assert "waiting up to 1 s for a sign of life" in caplog.text
    assert "taking over" in caplog.text


ELSEWHERE = """
import socket, sys, time
from pathlib import Path
from stoker.storage import lock
socket.gethostname = lambda: "far-away"
lock._kernel = lambda: "other/1"
lock.PERIOD = 3.0
lease = lock.Lock(Path(sys.argv[1]), on_lost=lambda error: print(error, flush=True))
lease.acquire()
print("held", flush=True)
"""


def elsewhere(folder, code):
    """A process that takes the lease as if it ran on another host, then runs the code."""
    return subprocess.Popen(
        [sys.executable, "-c", ELSEWHERE + code, str(folder)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def test_a_live_owner_on_another_host_is_not_declared_dead(tmp_path, monkeypatch):
    monkeypatch.setattr(lock, "PERIOD", 60.0)
    code = "for _ in range(10**9):\n    [i for i in range(10**5)]"  # holds the GIL
    with elsewhere(tmp_path, code) as process:
        assert process.stdout.readline() == "held\n"
        with pytest.raises(CheckpointError, match=r"is in use by process \d+ on far-away since"):
            Checkpoints(tmp_path).open()
        process.kill()


def test_a_killed_owner_on_another_host_is_gone_when_it_renews_no_more(tmp_path, monkeypatch):
    monkeypatch.setattr(lock, "PERIOD", 3.0)
    with elsewhere(tmp_path, "import os; os.kill(os.getpid(), 9)") as process:
        assert process.stdout.readline() == "held\n"
    save(tmp_path, 1)
    assert lease_of(tmp_path).host == socket.gethostname()


def test_a_run_that_lost_its_lease_notices_and_publishes_nothing(tmp_path, short):
    lost = []
    lease = LocalStorage(tmp_path).lease(lost.append)
    note_next(tmp_path)
    with pytest.raises(CheckpointError, match=r"has lost '.*' to process 7 on far-away"):
        lease.check()
    wait_for(lambda: lost)
    before = sorted((tmp_path / ".lock").iterdir())
    lease.release()
    assert sorted((tmp_path / ".lock").iterdir()) == before


def note_next(folder):
    owner = replace(Owner.this_process(), host="far-away", kernel="other/1", pid=7)
    (folder / ".lock" / "00000009.json").write_text(json.dumps(asdict(owner)))


def wait_for(condition):
    deadline = time.monotonic() + 300
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.parametrize("wait", [True, False])
def test_a_save_after_the_loss_fails_and_leaves_the_folder_alone(tmp_path, wait):
    with Checkpoints(tmp_path, keep=1) as checkpoints:
        checkpoints.save(1, state(1), wait=True)
        note_next(tmp_path)
        with pytest.raises(CheckpointError, match="has lost"):
            checkpoints.save(2, state(2), wait=wait)
            checkpoints.wait()
    assert [path.name for path in checkpoints.list()] == ["step-00000001"]
    assert sorted(p.name for p in tmp_path.iterdir()) == [".lock", "step-00000001"]


def test_a_lease_that_somebody_removed_is_restored(tmp_path, short):
    lease = LocalStorage(tmp_path).lease()
    (path,) = (tmp_path / ".lock").iterdir()
    path.unlink()
    wait_for(path.exists)
    lease.check()
    with pytest.raises(CheckpointError, match="is in use by process"):
        Checkpoints(tmp_path).open()
    lease.release()


def test_a_renewal_changes_the_counter_in_place(tmp_path, short):
    lease = LocalStorage(tmp_path).lease()
    wait_for(lambda: lease_of(tmp_path).renewals >= 2)
    lease.release()
    assert not [t for t in threading.enumerate() if t.name == "stoker-lease" and not t.daemon]
    assert lease_of(tmp_path).released


def contend(folder, start, results):
    start.wait()
    lease = Lock(folder)
    try:
        lease.acquire()
        results.put("won")
    except CheckpointError as error:
        results.put(str(error))
    time.sleep(600)


@pytest.mark.slow
@pytest.mark.parametrize("left", ["nothing", "a killed owner", "a released lease"])
def test_of_processes_that_start_at_once_exactly_one_wins(tmp_path, left):
    for turn in range(10):
        folder = tmp_path / str(turn)
        folder.mkdir()
        if left == "a killed owner":
            note(folder, started="1")
        elif left == "a released lease":
            note(folder, released=True)
        start, results = fork.Event(), fork.Queue()
        processes = [fork.Process(target=contend, args=(folder, start, results)) for _ in range(4)]
        for process in processes:
            process.start()
        start.set()
        found = [results.get(timeout=300) for _ in processes]
        for process in processes:
            process.kill()
            process.join()
        assert found.count("won") == 1, found
        assert all("is in use by process" in one for one in found if one != "won")


def die_at(function, before):
    real = getattr(os, function)

    def killed(*arguments):
        if not before:
            real(*arguments)
        os.kill(os.getpid(), signal.SIGKILL)

    setattr(os, function, killed)


def save_and_die(folder, function, before):
    die_at(function, before)
    save(folder, 2)


@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize("function", ["pwrite", "link", "unlink"])
def test_a_kill_in_the_middle_of_taking_the_lease_does_not_block(tmp_path, function, before):
    save(tmp_path, 1)
    assert in_child(save_and_die, tmp_path, function, before) == KILLED
    save(tmp_path, 3)
    assert len(list((tmp_path / ".lock").iterdir())) == 1


def test_a_folder_without_hard_links_has_a_lease_too(tmp_path, monkeypatch):
    def link(*_):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", link)
    with Checkpoints(tmp_path), pytest.raises(CheckpointError, match="is in use by process"):
        Checkpoints(tmp_path).open()
    assert lease_of(tmp_path).released


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", "[" * 10**5, '{"pid": "x"}', "\xff"])
def test_a_torn_lease_is_taken_after_a_period(tmp_path, monkeypatch, text):
    monkeypatch.setattr(lock, "PERIOD", 0.2)
    (tmp_path / ".lock").mkdir()
    (tmp_path / ".lock" / "00000001.json").write_text(text)
    save(tmp_path, 1)
    assert lease_of(tmp_path).released


@pytest.mark.parametrize("kind", ["file", "link"])
def test_nothing_is_written_through_a_link(tmp_path, kind):
    outside, folder = tmp_path / "outside", tmp_path / "run"
    outside.mkdir()
    folder.mkdir()
    if kind == "link":
        (folder / ".lock").symlink_to(outside)
    else:
        (folder / ".lock").write_text("from an older version")
    checkpoints = save(folder, 1)
    assert number_in(checkpoints.load(checkpoints.newest())) == 1
    assert list(outside.iterdir()) == []
