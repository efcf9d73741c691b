"""Kill a save anywhere: complete checkpoints stay complete, and the next start cleans up."""

import pytest

from stoker.checkpoint import CheckpointError, Checkpoints
from stoker.storage import crash_points
from support.checkpoint_states import KILLED, in_child, number_in, own, save, state

pytestmark = pytest.mark.process


def passed_points(folder, script, monkeypatch):
    """Return the points that a script passes, each with its count: ``("renamed", 2)``."""
    seen = []
    monkeypatch.setattr(
        crash_points, "at", lambda point: seen.append((point, seen_before(seen, point)))
    )
    script(folder)
    monkeypatch.undo()
    return seen


def seen_before(seen, point):
    return sum(name == point for name, _ in seen) + 1


def third_of_two(folder):
    """Save a third one where two are kept: one is removed."""
    with Checkpoints(folder, keep=2) as checkpoints:
        checkpoints.save(3, state(3), own())


def second_again(folder):
    """Replace the newest one."""
    with Checkpoints(folder, keep=2) as checkpoints:
        checkpoints.save(2, state(5), own())


@pytest.mark.parametrize("script", [third_of_two, second_again])
def test_a_kill_at_any_point_loses_nothing(tmp_path, monkeypatch, script):
    def prepare(folder):
        for step in (1, 2):
            save(folder, step, keep=2)
        return folder

    everywhere = passed_points(prepare(tmp_path / "all"), script, monkeypatch)
    assert len(everywhere) > 20
    for number, (point, turn) in enumerate(everywhere):
        folder = prepare(tmp_path / str(number))
        assert in_child(script, folder, STOKER_KILL_AT=f"{point}:{turn}") == KILLED, point
        with Checkpoints(folder, keep=2) as checkpoints:
            newest = checkpoints.newest()
            assert number_in(checkpoints.load(newest)) in (2, 3, 5), point
            complete = [path for path in checkpoints.list() if not checkpoints.verify(path)]
            assert len(complete) >= 2, point
            left = {path.name for path in folder.iterdir()}
            assert left == {".lock", *(path.name for path in complete)}, point
            checkpoints.save(4, state(4))
        assert number_in(checkpoints.load(checkpoints.newest())) == 4


def test_every_named_point_of_the_protocol_is_passed(tmp_path, monkeypatch):
    save(tmp_path, 1, keep=1)
    script = lambda folder: [save(folder, step, keep=1) for step in (1, 2)]
    names = {point for point, _ in passed_points(tmp_path, script, monkeypatch)}
    assert names == {
        "partial-made", "file-written", "file-synced", "before-manifest", "manifest-written",
        "before-rename", "set-aside", "renamed", "published", "verified",
        "before-removal", "trashed", "removed",
    }  # fmt: skip


def test_a_save_of_the_same_step_replaces_it(tmp_path):
    save(tmp_path, 5)
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(5, state(6))
    assert number_in(checkpoints.load(checkpoints.newest())) == 6
    assert [path.name for path in checkpoints.list()] == ["step-00000005"]


def test_a_checkpoint_that_does_not_read_back_is_withdrawn(tmp_path, monkeypatch):
    save(tmp_path, 1)

    def damage(point):
        if point == "published":
            (tmp_path / "step-00000001" / "state.json").write_text("{}")

    monkeypatch.setattr(crash_points, "at", damage)
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(1, state(8))
    with pytest.raises(CheckpointError, match="did not read back as written: 'state.json' has 2"):
        checkpoints.close()
    assert number_in(checkpoints.load(checkpoints.newest())) == 1


def test_a_replaced_checkpoint_is_restored_if_the_new_one_is_damaged(tmp_path):
    save(tmp_path, 1)
    assert in_child(second_go, tmp_path, STOKER_KILL_AT="renamed") == KILLED
    (tmp_path / "step-00000001" / "state.json").unlink()
    with Checkpoints(tmp_path) as checkpoints:
        assert number_in(checkpoints.load(checkpoints.newest())) == 1


def second_go(folder):
    with Checkpoints(folder) as checkpoints:
        checkpoints.save(1, state(9))


def test_only_folders_of_a_killed_run_are_cleaned(tmp_path):
    for name in (".step-00000001.partial-7", ".trash-step-00000002", ".mine", "notes"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").touch()
    Checkpoints(tmp_path).newest()
    assert (tmp_path / ".trash-step-00000002").exists()
    save(tmp_path, 3)
    left = sorted(path.name for path in tmp_path.iterdir())
    assert left == [".lock", ".mine", "notes", "step-00000003"]


def test_a_negative_step_is_rejected(tmp_path):
    with pytest.raises(ValueError, match="step must be at least 0, got -1"):
        Checkpoints(tmp_path).save(-1, {})
