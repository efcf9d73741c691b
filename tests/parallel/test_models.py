"""Models that are used in part, called by parts, or trained by your own loop."""

import functools

import pytest

from stoker import Layout
from support.comparing import TENSOR, close
from support.pool import pool
from support.tasks import models as model_tasks

pytestmark = pytest.mark.process


def test_parameters_that_are_not_used_are_named():
    for error in pool().run(2, model_tasks.refused, None):
        assert error.startswith("2 parameters were not used in the step and have no gradient "
                               "(b.weight, b.bias)")  # fmt: skip
        assert "Layout(unused=True)" in error


def test_parameters_that_are_no_longer_used_are_named():
    for error in pool().run(2, model_tasks.refused, 2):
        assert error.startswith("2 parameters were not used in the step and have no gradient "
                               "(b.weight, b.bias)")  # fmt: skip


def test_models_that_are_used_in_part_train_to_what_one_process_does():
    expected = model_tasks.parts_of_models(None)
    for found in pool().run(2, model_tasks.parts_of_models, Layout(replicate=2)):
        for case, weights in expected.items():
            close(found[case], weights)


@functools.cache
def alone_in_any_layout():
    return model_tasks.in_any_layout(None)


@pytest.mark.parametrize(
    "layout",
    [
        Layout(replicate=2),
        Layout(shard=2),
        Layout(tensor=2, plan=TENSOR),
        Layout(pipeline=2),
        Layout(pipeline=2, schedule="interleaved"),
        Layout(pipeline=2, replicate=2),
    ],
    ids=str,
)
def test_your_own_loop_also_runs_through_stages(layout):
    wanted = alone_in_any_layout()
    found = pool().run(layout.processes, model_tasks.in_any_layout, layout)
    for one in found:
        close(one["one"], wanted["one"])
        close(one["four"], wanted["four"])
    with_loss = [one["losses"] for one in found if one["losses"][0] is not None]
    assert len(with_loss) == layout.data_ranks * layout.tensor
    for step, loss in enumerate(wanted["losses"]):
        mean = sum(losses[step] for losses in with_loss) / len(with_loss)
        assert float(mean) == pytest.approx(float(loss), abs=1e-12)


@functools.cache
def alone():
    return model_tasks.own_loops(None)


@pytest.mark.parametrize(
    "layout",
    [
        Layout(replicate=2),
        Layout(shard=2),
        Layout(tensor=2, plan=TENSOR),
        Layout(replicate=2, tensor=2, plan=TENSOR),
    ],
    ids=str,
)
def test_your_own_loops_train_to_what_one_process_does(layout):
    for found in pool().run(layout.processes, model_tasks.own_loops, layout):
        for case, weights in alone().items():
            close(found[case], weights)
