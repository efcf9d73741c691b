"""Single behaviours of a job of several processes, each by its own measure."""

import functools
from collections import Counter

import pytest

from stoker import Layout
from support.comparing import TENSOR, close
from support.pool import pool
from support.tasks import rows as row_tasks
from support.toys import same_bits

pytestmark = pytest.mark.process

SCATTER = "c10d::_reduce_scatter_base_"


@pytest.mark.parametrize("accumulate", [1, 4])
@pytest.mark.parametrize("kind", ["replicate", "shard"])
def test_weights_are_those_of_the_loop_by_hand_to_the_bit_and_twice(kind, accumulate):
    first, second = pool().run(2, row_tasks.both_ways, kind, accumulate)
    for plain, trained, again in (first, second):
        assert same_bits(plain, trained)
        assert same_bits(trained, again)
    assert same_bits(first[1], second[1])


ONCE_PER_UPDATE = [
    (Layout(replicate=2), {("gloo:all_reduce", 283): 3}),
    (Layout(shard=2), {(SCATTER, 76): 3, (SCATTER, 72): 9}),  # three blocks and what is left
    (Layout(replicate=2, tensor=2, plan=TENSOR), {("gloo:all_reduce", 211): 3}),
]


@pytest.mark.row("C28")
@pytest.mark.parametrize("own_loop", [False, True], ids=["trainer", "own loop"])
@pytest.mark.parametrize(("layout", "expected"), ONCE_PER_UPDATE, ids=str)
def test_gradients_of_four_batches_are_shared_once_per_update(layout, expected, own_loop):
    found = pool().run(layout.processes, row_tasks.counted, layout, own_loop)
    for exchanges, weights in found:
        large = {what: count for what, count in exchanges.items() if what[1] > 40}
        if layout.shard > 1:  # which gloo makes of all-reduces
            large = {what: count for what, count in large.items() if what[0] == SCATTER}
        assert large == expected
        assert same_bits(weights, found[0][1])


@functools.cache
def alone():
    return row_tasks.every_uneven(None)


@pytest.mark.row("O13", "O22")
@pytest.mark.parametrize("layout", [Layout(replicate=2), Layout(shard=2)], ids=str)
def test_uneven_data_trains_to_what_one_process_makes_of_all_of_it(layout):
    for found in pool().run(2, row_tasks.every_uneven, layout):
        for case, (weights, losses, seen) in alone().items():
            close(found[case][0], weights)
            assert found[case][1] == pytest.approx(losses, abs=1e-12), case
            assert found[case][2] == seen


@pytest.mark.parametrize(
    "layout", [Layout(replicate=2), Layout(shard=2), Layout(tensor=2, plan=TENSOR)], ids=str
)
def test_evaluation_counts_every_sample_once(layout):
    results, counts, _ = row_tasks.evaluated(None)
    found = pool().run(2, row_tasks.evaluated, layout)
    by_rank = {rank: counts for _, counts, rank in found}
    assert sum((Counter(one) for one in by_rank.values()), Counter()) == counts
    for one, _, _ in found:
        assert one == pytest.approx(results, abs=1e-12)
