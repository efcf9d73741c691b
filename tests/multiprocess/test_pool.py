"""The pool that other tests stand on."""

import pytest

from support.pool import pool

pytestmark = pytest.mark.process


def test_processes_are_connected_and_used_again():
    from support.tasks import ranks as rank_tasks

    assert pool().run(2, rank_tasks.sum_of_ranks) == [1.0, 1.0]
    assert pool().run(3, rank_tasks.sum_of_ranks) == [3.0, 3.0, 3.0]


def test_an_error_on_one_rank_is_raised_here():
    from support.tasks import ranks as rank_tasks

    with pytest.raises(AssertionError, match="rank 1 is tired"):
        pool().run(2, rank_tasks.fail_on_one)
