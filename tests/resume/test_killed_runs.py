"""R1: a run that is killed anywhere and started again ends at the same bits.

``make kills`` kills it several times at each point; otherwise once at each, sampled by a seed.
"""

import signal

import pytest
import torch

from support.killable_run import STEPS, attempt, differences, result, train
from support.sample import one_of_each

pytestmark = pytest.mark.process

POINTS = {
    **dict.fromkeys(("before_step", "before_update", "after_step"), (1, 3, 7, STEPS)),
    **dict.fromkeys(("after_forward", "backward"), (1, 8, 20, 42)),
    "fetch": (1, 9, 60, 130, 166),
    **dict.fromkeys(("before_epoch", "after_train_epoch", "after_epoch"), (1, 2)),
    **dict.fromkeys(("before_val", "after_val"), (1, 2, 4)),
    "after_val_step": (1, 5, 11),
    **dict.fromkeys(("before_train", "after_train", "after_run"), (1,)),
}
PLACES = [(point, nth) for point, numbers in POINTS.items() for nth in numbers]

PROTOCOL = [
    f"{point}:{nth}"
    for point in (
        *("partial-made", "file-written", "file-synced", "before-manifest", "manifest-written"),
        *("before-rename", "renamed", "published", "verified"),
        *("before-removal", "trashed", "removed"),
    )
    for nth in (1, 4)
]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """What a run that nobody disturbs ends with."""
    threads = torch.get_num_threads()
    folder = tmp_path_factory.mktemp("whole") / "run"
    made = train(folder)
    torch.set_num_threads(threads)
    return result(folder, made)


@pytest.mark.parametrize(
    ("point", "nth"), one_of_each("STOKER_KILLS", PLACES, lambda place: place[0])
)
def test_a_run_killed_at_a_point_ends_at_the_same_bits(tmp_path, whole, point, nth):
    assert attempt(tmp_path / "run", (point, nth)) is None
    assert differences(whole, attempt(tmp_path / "run")) == []


@pytest.mark.parametrize(
    "place", one_of_each("STOKER_KILLS", PROTOCOL, lambda place: place.partition(":")[0])
)
def test_a_run_killed_inside_a_save_ends_at_the_same_bits(tmp_path, whole, place):
    assert attempt(tmp_path / "run", ("save", place)) is None
    assert differences(whole, attempt(tmp_path / "run")) == []


def test_a_run_killed_again_and_again_ends_at_the_same_bits(tmp_path, whole):
    places = [("after_step", 2), ("fetch", 30), ("save", "renamed:2"), ("after_val", 1)]
    for place in [*places, ("before_update", 3), ("after_epoch", 1)]:
        attempt(tmp_path / "run", place)
    assert differences(whole, attempt(tmp_path / "run")) == []


def test_a_killed_run_loses_at_most_the_interval(tmp_path):
    attempt(tmp_path / "run", ("before_update", 10))
    kept = sorted(path.name for path in (tmp_path / "run" / "checkpoints").glob("step-*"))
    assert kept[-1] in ("step-00000006", "step-00000008")  # saved every 2, the last under way
    attempt(tmp_path / "run")
    newest = tmp_path / "run" / "checkpoints" / kept[-1]
    assert f"resuming from {newest}" in (tmp_path / "run" / "log.txt").read_text()


def test_saves_as_often_as_the_budget_allows_end_at_the_same_bits(tmp_path, whole, monkeypatch):
    monkeypatch.setattr("stoker.hooks.checkpoint.perf_counter", lambda: 0.0)  # saves cost nothing
    assert attempt(tmp_path / "run", ("after_step", 9), every="auto", overhead=0.9) is None
    kept = [path.name for path in (tmp_path / "run" / "checkpoints").glob("step-*")]
    assert max(kept) > "step-00000000"
    assert differences(whole, attempt(tmp_path / "run")) == []


def test_a_step_that_does_not_end_in_the_grace_time_is_left(tmp_path, whole):
    assert attempt(tmp_path / "run", ("after_forward", 14), signal.SIGTERM, grace=0.3) is None
    assert differences(whole, attempt(tmp_path / "run")) == []


@pytest.mark.parametrize("how", [{"workers": 1}, {"precision": "fp16"}], ids=str)
def test_workers_and_fp16_end_at_the_same_bits(tmp_path, how):
    whole = attempt(tmp_path / "whole", **how)
    for place in (("after_step", 5), ("before_update", 4), ("after_val", 1)):
        assert attempt(tmp_path / "run", place, **how) is None
    assert differences(whole, attempt(tmp_path / "run", **how)) == []


@pytest.mark.parametrize(
    ("point", "nth"), [("fetch", 40), ("after_forward", 8), ("after_step", 6), ("before_val", 1)]
)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1], ids=lambda n: n.name)
def test_a_run_requested_to_end_saves_exits_with_143_and_resumes(
    tmp_path, whole, point, nth, number
):
    assert attempt(tmp_path / "run", (point, nth), number, every=1000) is None
    kept = sorted(path.name for path in (tmp_path / "run" / "checkpoints").glob("step-*"))
    assert kept[-1] > "step-00000000"  # nothing else was due
    ended = attempt(tmp_path / "run", every="2st")
    assert differences(whole, ended) == []


@pytest.mark.parametrize(("nth", "step"), [(4, 8), (5, 8), (10, 14)])
def test_a_long_validation_is_left_at_once_and_made_again(tmp_path, whole, nth, step):
    """From the second one on, when it is known that they take longer than there is time."""
    how = {"every": 1000, "slow": 0.2, "grace": 0.6}
    assert attempt(tmp_path / "run", ("after_val_step", nth), signal.SIGTERM, **how) is None
    kept = sorted(path.name for path in (tmp_path / "run" / "checkpoints").glob("step-*"))
    assert kept[-1] == f"step-{step:08}"
    assert differences(whole, attempt(tmp_path / "run", every="2st")) == []
