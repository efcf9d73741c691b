"""Optimizers that look at a parameter as a matrix, or at all of them, train as in one process."""

import functools
import os

import pytest
import torch
from torch import nn

from stoker import Layout
from stoker.parallel.optimizer_probe import find_coupling
from support.pool import pool
from support.tasks.optimizers import make_optimizer, optimized

NAMES = ["Muon", "Adafactor", "Lamb", "GlobalNorm", "AdamWScheduleFree", "ScheduleFreeWrapper"]
LAYOUTS = [Layout(shard=2), Layout(tensor=2), Layout(pipeline=2), Layout(shard=2, tensor=2)]
ALL = [(layout, name) for layout in LAYOUTS for name in NAMES]
REFUSED = (Layout(pipeline=2), "GlobalNorm")
SOME = [
    (Layout(shard=2), "Muon"),
    (Layout(shard=2), "GlobalNorm"),
    (Layout(tensor=2), "Lamb"),
    (Layout(pipeline=2), "Adafactor"),
]
IS_COMPLETE = bool(os.environ.get("STOKER_OPTIMIZERS"))


@functools.cache
def alone(name):
    return optimized(None, name)


def compare(found, expected):
    weights, history, predicted = expected
    assert found[0].keys() == weights.keys()
    for name, weight in weights.items():
        torch.testing.assert_close(found[0][name], weight, rtol=0, atol=1e-10)
    for row, other in zip(found[1], history, strict=True):
        assert row == pytest.approx(other, abs=1e-10)
    torch.testing.assert_close(found[2], predicted, rtol=0, atol=1e-10)


@pytest.mark.process
@pytest.mark.parametrize(
    ("layout", "name"),
    [pair for pair in (ALL if IS_COMPLETE else SOME) if pair != REFUSED],
    ids=str,
)
def test_an_optimizer_of_matrices_trains_as_in_one_process(layout, name):
    for found in pool().run(layout.processes, optimized, layout, name):
        compare(found, alone(name))


@pytest.mark.process
def test_stages_refuse_an_optimizer_that_needs_all_parameters():
    with pytest.raises(AssertionError, match="GlobalNorm computes the update of a parameter from"):
        pool().run(2, optimized, Layout(pipeline=2), "GlobalNorm")


@pytest.mark.process
@pytest.mark.parametrize("name", NAMES if IS_COMPLETE else ["ScheduleFreeWrapper"])
def test_a_training_on_shards_resumes_at_the_same_bits(name, tmp_path):
    layout = Layout(shard=2)
    expected = pool().run(2, optimized, layout, name)
    assert pool().run(2, optimized, layout, name, tmp_path, 3) == [None, None]
    for found, one in zip(pool().run(2, optimized, layout, name, tmp_path), expected, strict=True):
        assert all(torch.equal(found[0][key], value) for key, value in one[0].items())
        assert found[1] == one[1]


@pytest.mark.process
@pytest.mark.parametrize("name", NAMES if IS_COMPLETE else ["Muon"])
def test_one_process_continues_what_two_have_saved(name, tmp_path):
    assert pool().run(2, optimized, Layout(shard=2), name, tmp_path, 3) == [None, None]
    compare(optimized(None, name, tmp_path), alone(name))


def test_the_probe_finds_what_is_updated_together():
    model = nn.Sequential(nn.Linear(300, 8), nn.Conv2d(2, 3, 3))
    for name in ("Lamb", "Adafactor"):  # groups that differ in their rates are of one kind
        assert find_coupling(make_optimizer(name, model)).kinds == {(0, 1), (0, 2), (0, 4)}
    assert find_coupling(make_optimizer("GlobalNorm", model)).across
    for name in ("AdamWScheduleFree", "ScheduleFreeWrapper"):
        found = find_coupling(make_optimizer(name, model))
        assert (found.kinds, found.across) == (frozenset(), False)


def test_an_optimizer_that_cannot_be_tried_is_named():
    model = nn.Linear(4, 4)
    with pytest.raises(ValueError, match="whether SparseAdam updates each element by itself"):
        find_coupling(torch.optim.SparseAdam(model.parameters()))
