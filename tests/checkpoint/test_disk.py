"""A full, read-only or broken disk: one clear error, and the last checkpoint stays."""

import errno
import os
import resource
import signal
import subprocess

import pytest

from stoker.checkpoint import CheckpointError, Checkpoints
from support.checkpoint_states import in_child, number_in, save, state


def fail_writes(monkeypatch, number, after=2):
    """Let writes fail with an error after the first ``after``."""
    real, count = os.write, iter(range(1000))

    def write(file, data):
        if next(count) >= after:
            raise OSError(number, os.strerror(number))
        return real(file, data)

    monkeypatch.setattr(os, "write", write)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS, errno.EIO])
@pytest.mark.parametrize("after", [0, 3, 6])
def test_a_failed_save_leaves_the_last_good_state(tmp_path, monkeypatch, number, after):
    save(tmp_path, 1)
    fail_writes(monkeypatch, number, after)
    checkpoints = Checkpoints(tmp_path)
    with pytest.raises(CheckpointError) as raised:
        checkpoints.save(2, state(2), wait=True)
    monkeypatch.undo()
    message = str(raised.value)
    assert message.startswith(f"checkpoint of step 2 could not be written to '{tmp_path}': ")
    assert os.strerror(number) in message
    assert "'step-00000001' is still there" in message
    assert ("bytes needed, " in message) == (number == errno.ENOSPC)
    assert {path.name for path in tmp_path.iterdir()} == {".lock", "step-00000001"}
    checkpoints.save(3, state(3), wait=True)
    assert number_in(checkpoints.load(checkpoints.newest())) == 3
    checkpoints.close()


def write_too_much(folder):
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
    checkpoints = Checkpoints(folder)
    with pytest.raises(CheckpointError, match=r"File too large \(\d+,\d+ bytes needed, .* free\)"):
        checkpoints.save(2, state(2, size=10_000), wait=True)


@pytest.mark.process
def test_a_limit_on_the_size_of_files_is_reported(tmp_path):
    save(tmp_path, 1)
    assert in_child(write_too_much, tmp_path) == 0
    assert {path.name for path in tmp_path.iterdir()} == {".lock", "step-00000001"}


@pytest.fixture
def tiny_disk(tmp_path):
    mount = ["mount", "-t", "tmpfs", "-o", "size=512k", "tmpfs", str(tmp_path)]
    if os.geteuid() or subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("mounting a small disk needs root")
    yield tmp_path
    subprocess.run(["umount", str(tmp_path)], check=True)


def test_a_full_disk(tiny_disk):
    folder = tiny_disk / "checkpoints"
    save(folder, 1)
    with Checkpoints(folder) as checkpoints:
        with pytest.raises(CheckpointError, match="No space left on device .*bytes needed"):
            checkpoints.save(2, state(2, size=200_000), wait=True)
        assert number_in(checkpoints.load(checkpoints.newest())) == 1
        checkpoints.save(3, state(3), wait=True)
    assert [path.name for path in checkpoints.list()] == ["step-00000001", "step-00000003"]


@pytest.mark.process
def test_a_read_only_disk(tiny_disk):
    folder = tiny_disk / "checkpoints"
    save(folder, 1)
    subprocess.run(["mount", "-o", "remount,ro", str(tiny_disk)], check=True)
    with pytest.raises(CheckpointError, match="cannot be written to: Read-only file system"):
        Checkpoints(folder).open()
    assert number_in(Checkpoints(folder).load(Checkpoints(folder).newest())) == 1


def test_a_file_in_place_of_the_folder_is_named(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(CheckpointError, match="file' cannot be written to: File exists"):
        Checkpoints(tmp_path / "file").open()


def test_a_failed_removal_is_logged_and_fails_nothing(tmp_path, monkeypatch, caplog):
    save(tmp_path, 1)
    real = os.rename

    def rename(source, target):
        if ".trash-" in str(target):
            raise OSError(errno.EACCES, "Permission denied")
        real(source, target)

    monkeypatch.setattr(os, "rename", rename)
    checkpoints = save(tmp_path, 2, keep=1)
    assert len(checkpoints.list()) == 2
    assert "could not remove" in caplog.text
