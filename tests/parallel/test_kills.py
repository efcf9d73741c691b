"""R1 for two processes: a job of which one is killed anywhere ends at the same bits, in both.

``make kills`` kills each process at each point; otherwise one of them, sampled by a seed.
"""

import signal

import pytest

from support.killable_job import RANKS, attempt
from support.killable_run import differences
from support.sample import one_of_each

pytestmark = pytest.mark.process

PLACES = [
    *[(0, "fetch", 3), (1, "fetch", 60), (0, "after_forward", 5), (1, "after_forward", 14)],
    *[(1, "backward", 8), (0, "before_update", 6), (0, "after_step", 5), (1, "after_step", 7)],
    *[(0, "before_val", 2), (1, "before_val", 1), (0, "after_val_step", 1), (1, "after_epoch", 1)],
]
SAVES = [
    *[(0, "file-written:2"), (0, "before-manifest:2"), (0, "renamed:3")],
    *[(1, "partial-made:2"), (1, "file-synced:5")],
]


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    """Return the final state of each process of a job that is not killed."""
    return attempt(tmp_path_factory.mktemp("uninterrupted") / "run")


def test_the_processes_of_a_job_train_the_same_model_with_numbers_of_their_own(uninterrupted):
    one, other = uninterrupted
    assert one["counters"][0] == 8
    assert differences(one["engine"]["optimizers"], other["engine"]["optimizers"]) == []
    assert not one["draws"].equal(other["draws"])


@pytest.mark.parametrize(
    ("rank", "point", "nth"), one_of_each("STOKER_KILLS", PLACES, lambda place: place[1])
)
def test_a_job_killed_at_a_point_ends_at_the_same_bits(tmp_path, uninterrupted, rank, point, nth):
    assert attempt(tmp_path / "run", (point, nth), rank) is None
    assert differences(uninterrupted, attempt(tmp_path / "run")) == []


@pytest.mark.parametrize(("rank", "point"), SAVES)
def test_a_job_killed_inside_a_save_ends_at_the_same_bits(tmp_path, uninterrupted, rank, point):
    assert attempt(tmp_path / "run", ("save", point), rank) is None
    assert differences(uninterrupted, attempt(tmp_path / "run")) == []


def test_a_job_killed_again_and_again_ends_at_the_same_bits(tmp_path, uninterrupted):
    for rank, *place in ((1, "after_step", 2), (0, "save", "renamed:2"), (1, "fetch", 9)):
        assert attempt(tmp_path / "run", tuple(place), rank) is None
    assert differences(uninterrupted, attempt(tmp_path / "run")) == []


def test_a_job_with_workers_ends_at_the_same_bits(tmp_path):
    uninterrupted = attempt(tmp_path / "uninterrupted", workers=1)
    assert attempt(tmp_path / "run", ("after_step", 5), 1, workers=1) is None
    assert differences(uninterrupted, attempt(tmp_path / "run", workers=1)) == []


@pytest.mark.parametrize(
    ("rank", "point", "nth", "to"),
    [
        *[(1, "fetch", 30, (1,)), (0, "after_forward", 8, RANKS), (0, "after_step", 3, (1,))],
        *[(1, "after_val_step", 1, (1,)), (1, "after_val_step", 1, RANKS)],
    ],
)
def test_a_job_that_gets_sigterm_exits_with_143_and_resumes(
    tmp_path, uninterrupted, rank, point, nth, to
):
    how = {"number": signal.SIGTERM, "to": to, "every": 1000}
    assert attempt(tmp_path / "run", (point, nth), rank, **how) is None
    kept = sorted(path.name for path in (tmp_path / "run" / "checkpoints").glob("step-*"))
    assert kept[-1] > "step-00000000"  # nothing else was due
    assert differences(uninterrupted, attempt(tmp_path / "run")) == []


@pytest.mark.parametrize("to", [(1,), RANKS], ids=str)
def test_a_long_validation_is_left_by_all_and_made_again(tmp_path, uninterrupted, to):
    how = {"number": signal.SIGTERM, "to": to, "every": 1000, "slow": 0.3, "grace": 0.8}
    assert attempt(tmp_path / "run", ("after_val_step", 3), 1, **how) is None
    kept = sorted(path.name for path in (tmp_path / "run" / "checkpoints").glob("step-*"))
    assert kept[-1] == "step-00000008"
    assert differences(uninterrupted, attempt(tmp_path / "run")) == []
