"""Each fault does what its name says, to checkpoints above all, and is gone afterwards."""

import errno
import os
import subprocess
import sys
from time import perf_counter

import pytest

from stoker.checkpoint import CheckpointError, Checkpoints
from stoker.testing import faults
from support.checkpoint_states import save, state


def test_flipping_a_bit_changes_one_bit(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(bytes(9))
    faults.flip_bit(path)
    assert path.read_bytes() == bytes([0, 0, 0, 0, 16, 0, 0, 0, 0])
    faults.flip_bit(path, 0)
    assert path.read_bytes()[0] == 1
    faults.flip_bit(path, 0)
    faults.flip_bit(path)
    assert path.read_bytes() == bytes(9)
    path.write_bytes(b"")
    with pytest.raises(ValueError, match="is empty, so it has no bit to flip"):
        faults.flip_bit(path)


def test_truncating_cuts_the_end_off(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"0123456789")
    faults.truncate(path, -1)
    assert path.read_bytes() == b"012345678"
    faults.truncate(path)
    assert path.read_bytes() == b"0123"
    faults.truncate(path, 1)
    assert path.read_bytes() == b"0"


@pytest.mark.parametrize("damage", [faults.flip_bit, faults.truncate, faults.remove])
@pytest.mark.parametrize("name", ["MANIFEST.json", "model.safetensors", "state.json"])
def test_a_damaged_checkpoint_is_passed_over(tmp_path, damage, name):
    save(tmp_path, 1)
    save(tmp_path, 2)
    damage(tmp_path / "step-00000002" / name)
    assert Checkpoints(tmp_path).newest().name == "step-00000001"


@pytest.mark.parametrize("room", [0, 100, 500])
def test_a_full_disk_leaves_the_last_good_state(tmp_path, room):
    save(tmp_path, 1)
    checkpoints = Checkpoints(tmp_path)
    with faults.disk_full(after=room), pytest.raises(CheckpointError, match="No space left"):
        checkpoints.save(2, state(2), wait=True)
    checkpoints.save(3, state(3), wait=True)
    assert checkpoints.newest().name == "step-00000003"
    checkpoints.close()


def test_a_disk_writes_what_it_has_room_for(tmp_path):
    with (tmp_path / "file").open("wb") as file, faults.disk_full(after=4):
        assert os.write(file.fileno(), b"0123456789") == 4
        with pytest.raises(OSError, match="No space left") as raised:
            os.write(file.fileno(), b"456789")
    assert raised.value.errno == errno.ENOSPC
    assert (tmp_path / "file").read_bytes() == b"0123"


def test_other_errors_of_a_disk(tmp_path):
    with faults.failing_writes(errno.EROFS), pytest.raises(CheckpointError, match="Read-only"):
        save(tmp_path, 1)
    save(tmp_path, 2)


def test_a_slow_disk_is_slow(tmp_path):
    began = perf_counter()
    with faults.slow_disk(0.05):
        save(tmp_path, 1)
    assert perf_counter() - began > 0.05 * 4
    assert Checkpoints(tmp_path).newest() is not None


def test_a_limit_on_files_holds_for_all_who_write(tmp_path):
    with (
        faults.file_size_limit(1000),
        pytest.raises(OSError, match="File too large"),
        (tmp_path / "file").open("wb", buffering=0) as file,
    ):
        file.write(bytes(1000))
        file.write(b"one more")
    (tmp_path / "file").write_bytes(bytes(2000))


def test_a_read_only_folder_has_its_modes_back(tmp_path):
    inner = tmp_path / "a" / "b"
    inner.mkdir(parents=True)
    before = inner.stat().st_mode
    with faults.read_only(tmp_path / "a"):
        assert inner.stat().st_mode & 0o222 == 0
        if os.geteuid():
            with pytest.raises(PermissionError):
                (inner / "file").write_text("")
    assert inner.stat().st_mode == before
    (inner / "file").write_text("")


@pytest.mark.process
def test_terminate_sends_the_signal():
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    faults.terminate(child.pid)
    assert child.wait(600) == -15
