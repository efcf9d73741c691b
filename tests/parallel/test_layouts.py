"""Every layout trains to what one process trains to.

``make layouts`` runs all of them in every way; otherwise a seeded sample runs.
"""

import functools

import pytest
import torch

from stoker import Layout
from support.pool import pool
from support.sample import sample
from support.tasks import every_layout as layouts_all

pytestmark = pytest.mark.process

TWO = [
    Layout(replicate=2),
    Layout(shard=2),
    Layout(tensor=2),
    Layout(pipeline=2),
    Layout(pipeline=2, schedule="gpipe"),
    Layout(pipeline=2, schedule="interleaved"),
    Layout(pipeline=2, schedule="zero-bubble"),
]
FOUR = [
    Layout(replicate=4),
    Layout(replicate=2, shard=2),
    Layout(replicate=2, tensor=2),
    Layout(shard=2, tensor=2),
    Layout(pipeline=2, replicate=2),
    Layout(pipeline=2, shard=2),
    Layout(pipeline=4),
]


def named(layout):
    return f"{layout} {layout.schedule}" if layout.pipeline > 1 else str(layout)


@functools.cache
def alone(accumulate, tied, samples):
    return layouts_all.trained(None, 1, accumulate, tied=tied, samples=samples)


def check(layout, accumulate, samples=36):
    tied = layout.tensor == 1
    weights, results, predicted, seen = alone(accumulate, tied, samples)
    found = pool().run(layout.processes, layouts_all.trained_in, layout, accumulate, tied, samples)
    for one in found:
        assert one[3] == seen
        torch.testing.assert_close(one[2], predicted, rtol=0, atol=1e-10)
        for row, expected in zip(one[1], results, strict=True):
            assert row == pytest.approx(expected, abs=1e-10)
        assert one[0].keys() == weights.keys()
        for name, weight in weights.items():
            torch.testing.assert_close(one[0][name], weight, rtol=0, atol=1e-10)


@pytest.mark.parametrize("layout", TWO, ids=named)
def test_two_processes_train_to_what_one_does(layout):
    check(layout, 1)


@pytest.mark.parametrize("layout", sample("STOKER_LAYOUTS", TWO, 2), ids=named)
def test_two_processes_accumulate_to_what_one_does(layout):
    check(layout, 2)


@pytest.mark.parametrize(
    "layout", sample("STOKER_LAYOUTS", FOUR, 2, [Layout(shard=2, tensor=2)]), ids=named
)
def test_four_processes_train_to_what_one_does(layout):
    check(layout, 2)


UNEVEN = [
    Layout(pipeline=2, schedule="gpipe", microbatches=4),
    Layout(pipeline=2, schedule="1f1b", microbatches=4),
    Layout(pipeline=2, schedule="interleaved", microbatches=4),
    Layout(pipeline=2, schedule="zero-bubble", microbatches=4),
    Layout(pipeline=2, schedule="zero-bubble", virtual=2, microbatches=4),
    Layout(pipeline=2, replicate=2, microbatches=3),
    Layout(pipeline=2, shard=2, microbatches=3),
    Layout(pipeline=2, shard=2, schedule="interleaved", microbatches=2),
]


UNEVEN_CASES = sample(
    "STOKER_LAYOUTS", [(*sizes, one) for sizes in ((31, 1), (35, 3)) for one in UNEVEN], 5
)


@pytest.mark.parametrize(("samples", "accumulate", "layout"), UNEVEN_CASES, ids=str)
def test_a_last_batch_that_does_not_divide_counts_as_in_one_process(samples, accumulate, layout):
    check(layout, accumulate, samples)


def test_one_process_fills_a_layout_and_has_nothing_to_share():
    assert Layout(replicate=-1, unused=True).filled(1) == Layout()
    assert Layout(shard=-1, offload=True, reshard=False).filled(1) == Layout()
    assert Layout(shard=-1, offload=True).filled(2).offload
    with pytest.raises(ValueError, match="dtype is an option of shard"):
        Layout(shard=-1, dtype="bf16").filled(1)
