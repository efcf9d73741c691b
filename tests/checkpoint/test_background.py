"""Saving in the background."""

import threading
import time

import pytest
import torch

from stoker.checkpoint import Checkpoints
from stoker.checkpoint.write.snapshot import Staging
from stoker.storage import crash_points
from support.checkpoint_states import number_in, state
from support.processes import HANG


@pytest.fixture
def gate(monkeypatch):
    """Holds every save back before its manifest until it is set."""
    event = threading.Event()
    hold = lambda point: event.wait(HANG) if point == "before-manifest" else None
    monkeypatch.setattr(crash_points, "at", hold)
    yield event
    event.set()


def test_save_returns_before_the_checkpoint_exists(tmp_path, gate):
    with Checkpoints(tmp_path) as checkpoints:
        path = checkpoints.save(1, state(1))
        assert not path.exists()
        gate.set()
        checkpoints.wait()
        assert path.exists()


def test_changes_after_a_save_do_not_reach_the_file(tmp_path, gate):
    kept = {"model": {"w": torch.zeros(1000)}, "list": [1], "deep": {"a": {"b": 1}}}
    info = {"metrics": {"loss": 1.0}}
    with Checkpoints(tmp_path) as checkpoints:
        path = checkpoints.save(1, kept, {"mine": kept["list"]}, info)
        kept["model"]["w"] += 1
        kept["list"].append(2)
        kept["deep"]["a"]["b"] = 2
        info["metrics"]["loss"] = 2.0
        gate.set()
        checkpoints.wait()
        found = checkpoints.load(path)
    assert not found.shared["model"]["w"].any()
    assert found.shared["list"] == found.own["mine"] == [1]
    assert found.shared["deep"] == {"a": {"b": 1}}
    assert found.info == {"metrics": {"loss": 1.0}}


def test_a_second_save_waits_for_the_first(tmp_path, gate):
    with Checkpoints(tmp_path) as checkpoints:
        first = checkpoints.save(1, state(1))
        second = threading.Thread(target=checkpoints.save, args=(2, state(2)))
        second.start()
        second.join(0.2)
        assert second.is_alive()
        assert not first.exists()
        gate.set()
        second.join()
        assert first.exists()
        checkpoints.wait()
        assert [number_in(checkpoints.load(path)) for path in checkpoints.list()] == [1, 2]


def fail_once(monkeypatch):
    def fail(point):
        if point == "before-manifest":
            monkeypatch.undo()
            raise RuntimeError("as planned")

    monkeypatch.setattr(crash_points, "at", fail)


@pytest.mark.parametrize("call", ["wait", "save", "check", "close"])
def test_an_error_is_raised_at_the_next_call_and_only_there(tmp_path, monkeypatch, call):
    checkpoints = Checkpoints(tmp_path)
    fail_once(monkeypatch)
    checkpoints.save(1, state(1))
    while checkpoints.background.busy:
        time.sleep(0.01)
    arguments = (2, state(2)) if call == "save" else ()
    with pytest.raises(RuntimeError, match="as planned"):
        getattr(checkpoints, call)(*arguments)
    checkpoints.check()
    checkpoints.save(3, state(3))
    checkpoints.close()
    assert [path.name for path in checkpoints.list()] == ["step-00000003"]


def test_check_never_waits(tmp_path, gate):
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(1, state(1))
        checkpoints.check()
        gate.set()


def test_buffers_are_reused_until_shapes_change():
    staging = Staging()
    blocks = lambda size: staging.copy({"f": {"a": torch.ones(size)}})["f"].blocks()[1]
    where = lambda block: torch.frombuffer(block, dtype=torch.uint8).data_ptr()
    first = blocks(8)
    assert where(blocks(8)) == where(first)
    assert len(blocks(9)) == 36


def test_shapes_may_change_between_saves(tmp_path):
    with Checkpoints(tmp_path, keep=None) as checkpoints:
        for step, size in [(1, 5), (2, 7), (3, 0), (4, 7)]:
            checkpoints.save(step, {"model": {"w": torch.full((size,), step)}})
        checkpoints.wait()
        found = [checkpoints.load(path).shared["model"]["w"] for path in checkpoints.list()]
    assert [tensor.tolist() for tensor in found] == [[1] * 5, [2] * 7, [], [4] * 7]


def test_a_rejected_state_leaves_the_folder_unchanged(tmp_path):
    with Checkpoints(tmp_path) as checkpoints:
        with pytest.raises(TypeError, match="a → b is a function"):
            checkpoints.save(1, {"a": {"b": lambda: 0}})
        checkpoints.save(2, state(2))
    assert [path.name for path in checkpoints.list()] == ["step-00000002"]


def test_on_saved_is_called_when_a_checkpoint_is_complete_and_old_ones_are_removed(tmp_path):
    calls = []

    def on_saved(path):
        calls.append(
            (path.name, (path / "MANIFEST.json").is_file(), len(list(tmp_path.glob("s*"))))
        )

    with Checkpoints(tmp_path, keep=1, on_saved=on_saved) as checkpoints:
        checkpoints.save(1, state(1))
        checkpoints.save(2, state(2))
    assert calls == [("step-00000001", True, 1), ("step-00000002", True, 1)]
