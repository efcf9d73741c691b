"""What one process of a job asks for, all of them do at the same step."""

import signal

import pytest

from support.killable_run import same
from support.pool import pool
from support.tasks import batch_sizes, layouts

pytestmark = pytest.mark.process


def test_a_stop_that_one_process_asks_for_stops_both_after_that_step(tmp_path):
    first, second = pool().run(2, layouts.asking, tmp_path, "stop")
    assert same(first, second)
    assert first[2] == 3
    assert first[4] == "rank 1 has seen enough"


def test_a_validation_that_one_process_asks_for_is_made_by_both(tmp_path):
    first, second = pool().run(2, layouts.asking, tmp_path, "evaluate")
    assert same(first, second)
    assert first[0] == [("val", 3), ("epoch", 6), ("epoch", 12)]


def test_an_end_of_the_epoch_that_one_process_asks_for_is_one_for_both(tmp_path):
    first, second = pool().run(2, layouts.asking, tmp_path, "end_epoch")
    assert same(first, second)
    assert first[0] == [("epoch", 3), ("epoch", 9)]


def test_a_save_that_one_process_asks_for_is_made_by_both(tmp_path):
    first, second = pool().run(2, layouts.asking, tmp_path, "save")
    assert same(first, second)
    assert "step-00000003" in first[1]


def test_an_update_that_one_process_leaves_out_is_left_out_by_both(tmp_path):
    first, second = pool().run(2, layouts.asking, tmp_path, "skip")
    assert same(first, second)
    assert first[2] == 11


@pytest.mark.parametrize("rank", [0, 1])
def test_a_signal_to_one_process_ends_both_at_the_same_step_with_a_checkpoint(tmp_path, rank):
    first, second = pool().run(2, layouts.signalled, tmp_path, signal.SIGTERM, rank)
    assert first == second
    assert first[1:] == (True, "preempted by SIGTERM")
    assert (tmp_path / "checkpoints" / f"step-{first[0]:08}" / "MANIFEST.json").is_file()


def test_ranks_agree_on_a_batch_size():
    assert pool().run(2, batch_sizes.batch_sizes, [16, 7]) == [4, 4]


def test_a_rank_that_runs_out_of_memory_does_not_wait_for_one_that_waits_for_it():
    _, error = pool().run(2, batch_sizes.stuck_batch_size)
    assert "rank 1 has run out of memory with batches of 4, while rank 0 waits for it" in error
    assert "pass largest=2" in error
