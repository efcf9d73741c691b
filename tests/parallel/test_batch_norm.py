"""``sync_batchnorm``: batch norms with the statistics of all processes."""

import copy

import pytest
import torch
from torch import nn

from stoker import Engine, Layout
from stoker.parallel.batch_norm import BatchStatistics, sync_batch_norms
from support.pool import pool
from support.tasks import batch_norm


def gap(weights, expected):
    return max(float((weights[name] - one).abs().max()) for name, one in expected.items())


@pytest.mark.process
@pytest.mark.parametrize(
    ("layout", "samples", "accumulate"),
    [
        (Layout(replicate=2, sync_batchnorm=True), 24, 1),
        (Layout(replicate=2, sync_batchnorm=True), 36, 1),  # the second rank gets padding
        (Layout(replicate=2, sync_batchnorm=True), 32, 2),
        (Layout(shard=2, sync_batchnorm=True), 24, 1),
    ],
    ids=["replicate", "padding", "accumulate", "shard"],
)
def test_two_processes_train_like_one_on_the_complete_batch(layout, samples, accumulate):
    expected, rows = batch_norm.trained(None, samples, accumulate)
    for weights, found in pool().run(2, batch_norm.trained, layout, samples, accumulate):
        assert gap(weights, expected) <= 1e-12
        for row, other in zip(found, rows, strict=True):
            assert row == pytest.approx(other, abs=1e-12)


@pytest.mark.process
def test_without_it_each_process_normalizes_its_own_batch():
    expected, _ = batch_norm.trained(None, 24)
    weights, _ = pool().run(2, batch_norm.trained, Layout(replicate=2), 24)[0]
    assert gap(weights, expected) > 1e-4


def test_a_single_process_needs_no_synchronization():
    layout = Layout(replicate=-1, sync_batchnorm=True)
    engine = Engine(batch_norm.convnet(), layout=layout)
    assert type(engine.model[1]) is nn.BatchNorm2d
    with pytest.raises(ValueError, match="sync_batchnorm is an option of replicate and shard"):
        Layout(pipeline=2, sync_batchnorm=True)
    with pytest.raises(ValueError, match="sync_batchnorm must be True or False, got 'yes'"):
        Layout(replicate=2, sync_batchnorm="yes")


def test_models_that_cannot_be_synchronized_are_rejected():
    class Own(nn.BatchNorm1d):
        pass

    with pytest.raises(ValueError, match="the model has no batch norm: leave it out"):
        sync_batch_norms(nn.Linear(1, 1), None)
    with pytest.raises(ValueError, match="'0' is a Own, which may compute something else"):
        sync_batch_norms(nn.Sequential(Own(2)), None)


def test_a_copy_of_a_synchronized_model_belongs_to_the_same_processes():
    statistics = BatchStatistics(None)
    assert copy.deepcopy({"a": statistics})["a"] is statistics
    assert sync_batch_norms(model := nn.Sequential(nn.BatchNorm1d(2)), None) is not statistics
    assert list(model.state_dict()) == list(nn.Sequential(nn.BatchNorm1d(2)).state_dict())
    assert torch.equal(model.eval()(torch.ones(1, 2)), nn.BatchNorm1d(2).eval()(torch.ones(1, 2)))
