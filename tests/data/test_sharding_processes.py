"""Ranks that read their own loaders take the same number of windows, and lose no data."""

import pytest
import torch

from support.pool import pool
from support.tasks import data as data_tasks

pytestmark = pytest.mark.process


@pytest.mark.row("O22")
def test_uneven_numbers_of_batches_neither_hang_nor_lose_any():
    (steps, (one, again)), (others, (two, _)) = pool().run(2, data_tasks.uneven, [1, 3], {})
    assert steps == others == 3
    assert one == again == [([0], 0, 4, False), ([101], 1, 3, False), ([102], 1, 1, True)]
    assert two == [([100], 0, 4, False), ([101], 0, 3, False), ([102], 0, 1, True)]


@pytest.mark.row("O22")
def test_a_window_that_is_short_on_one_of_three_is_filled_up():
    found = pool().run(3, data_tasks.uneven, [1, 2, 5], {"accumulate": 2})
    first, second, third = (passes[0] for _, passes in found)
    assert [steps for steps, _ in found] == [3, 3, 3]
    assert first == [([0, 0], 1, 11, False), ([203, 203], 2, 6, False), ([204], 1, 1, True)]
    assert second == [([100, 101], 0, 11, False), ([203, 203], 2, 6, False), ([204], 1, 1, True)]
    assert third == [([200, 201], 0, 11, False), ([202, 203], 0, 6, False), ([204], 0, 1, True)]


@pytest.mark.row("O22")
def test_a_last_window_may_be_dropped_on_one_process_alone():
    options = {"accumulate": 2, "last_window": "drop"}
    found = pool().run(2, data_tasks.uneven, [3, 4], options)
    (_, (one, _)), (_, (two, _)) = found
    assert one == [([0, 1], 0, 12, False), ([103, 103], 2, 4, True)]
    assert two == [([100, 101], 0, 12, False), ([102, 103], 0, 4, True)]


@pytest.mark.row("O22")
@pytest.mark.parametrize("counts", [[1, 5], [3, 2, 7]])
def test_every_position_in_uneven_data_is_resumed_exactly(counts):
    assert len(set(pool().run(len(counts), data_tasks.resumed, counts))) == 1


def test_a_stream_gets_its_shard():
    found = pool().run(2, data_tasks.streams)
    sharded = [[numbers for numbers, *_ in windows] for windows, _ in found]
    assert sharded == [[[0], [4]], [[1], [5]]]
    assert [[size for _, _, size, _ in windows] for windows, _ in found] == [[4, 3]] * 2
    assert [[numbers for numbers, *_ in unsharded] for _, unsharded in found] == [
        [[0], [1], [2]]
    ] * 2


def test_data_that_is_empty_on_one_process_is_an_error_on_all():
    errors = pool().run(2, data_tasks.empty_on_one)
    assert errors[0] == errors[1]
    assert (
        "train_loader has too few batches for a step on rank 0: expected at least one" in errors[0]
    )
    errors = pool().run(2, data_tasks.empty_by_length_on_one)
    assert errors == ["train_loader is empty: it has no batches, expected at least one"] * 2


def test_sharded_and_even_loaders_need_no_communication_and_use_the_seed_of_rank_0():
    (seen, one), (_, two) = pool().run(2, data_tasks.without_communication)
    sharded, even = seen
    assert [window[1:] for window in sharded] == [(0, 4, False), (0, 4, False), (0, 2, True)]
    assert [window[1:] for window in even] == [(0, 4, False), (0, 4, False), (0, 2, True)]
    order = torch.randperm(10, generator=torch.Generator().manual_seed(0)).tolist()
    assert [sample for batch in one for sample in batch] == order[0::2]
    assert [sample for batch in two for sample in batch] == order[1::2]


def test_ranks_that_read_the_same_shard_count_it_once():
    found = pool().run(4, data_tasks.two_ranks_per_shard)
    assert found[0] == found[1] == [[(0, 4), (1, 1)], [(0, 10), (0, 5)]]
    assert found[2] == found[3] == [[(0, 4), (0, 1)], [(0, 10), (1, 5)]]
