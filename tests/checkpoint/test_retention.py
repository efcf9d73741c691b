"""Which checkpoints are kept."""

import pytest

from stoker.checkpoint import Best, Checkpoints
from stoker.checkpoint.retention import Retention
from support.checkpoint_states import save, state

LOSSES = {1: 0.5, 2: 0.2, 3: 0.9, 4: 0.2, 5: None, 6: float("nan"), 7: 0.4}


@pytest.mark.parametrize(
    ("keep", "keep_every", "best", "left"),
    [
        (1, None, None, [7]),
        (3, None, None, [5, 6, 7]),
        (None, None, None, [1, 2, 3, 4, 5, 6, 7]),
        (1, 3, None, [3, 6, 7]),
        (1, None, Best("loss", "min"), [2, 7]),
        (1, None, Best("loss", "min", k=2), [2, 4, 7]),
        (1, None, Best("loss", "max"), [3, 7]),
        (1, 6, Best("loss", "max", k=2), [1, 3, 6, 7]),
        (9, 1, Best("loss", "max", k=9), [1, 2, 3, 4, 5, 6, 7]),
        (2, None, Best("accuracy", "max"), [6, 7]),
    ],
)
def test_which_of_seven_are_kept(keep, keep_every, best, left):
    rule = Retention(keep, keep_every, best)
    info = lambda step: {"metrics": {"loss": LOSSES[step]}}
    gone = rule.to_remove(LOSSES, 7, info)
    assert [step for step in LOSSES if step not in gone] == left


def test_damaged_ones_do_not_count():
    complete = {1, 2, 3, 6}
    rule = Retention(2, None, None)
    gone = rule.to_remove(range(1, 7), 6, lambda step: {} if step in complete else None)
    assert gone == [1, 2]


def test_the_one_just_saved_is_kept_even_if_it_is_not_the_newest():
    assert Retention(1, None, None).to_remove([3, 8, 9], 3, lambda _: {}) == [8]


def test_the_folder_follows_the_rule_and_counts_earlier_runs(tmp_path):
    for step in range(1, 4):
        save(tmp_path, step, keep=None)
    with Checkpoints(tmp_path, keep=2, keep_every=2, best=Best("val/loss", "min")) as checkpoints:
        for step, loss in [(5, 0.1), (7, 0.3), (9, 0.2)]:
            checkpoints.save(step, state(step), info={"metrics": {"val/loss": loss}})
        checkpoints.wait()
        assert [path.name[-1] for path in checkpoints.list()] == ["2", "5", "7", "9"]


def test_a_broken_newer_one_keeps_an_older_one(tmp_path):
    for step in (1, 2):
        save(tmp_path, step)
    (tmp_path / "step-00000002" / "state.json").unlink()
    checkpoints = save(tmp_path, 3, keep=2)
    assert [path.name[-1] for path in checkpoints.list()] == ["1", "2", "3"]
    checkpoints = save(tmp_path, 4, keep=2)
    assert [path.name[-1] for path in checkpoints.list()] == ["3", "4"]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Checkpoints("x", keep=0), "keep must be at least 1, or None for all, got 0"),
        (lambda: Checkpoints("x", keep_every=0), "keep_every must be at least 1, got 0"),
        (lambda: Best("loss", "least"), "mode must be 'min' or 'max', got 'least'"),
        (lambda: Best("loss", "min", k=0), "k must be at least 1, got 0"),
    ],
)
def test_invalid_rules_are_rejected_immediately(make, message):
    with pytest.raises(ValueError, match=message):
        make()
