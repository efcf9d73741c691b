"""Hooks, options and tasks do in every layout what they do in one process."""

import functools

import pytest
import torch

from stoker import Layout
from support.comparing import TENSOR, close
from support.pool import pool
from support.tasks import hooks as hook_tasks
from support.toys import same_bits

pytestmark = pytest.mark.process

LAYOUTS = [
    Layout(replicate=2),
    Layout(shard=2),
    Layout(tensor=2, plan=TENSOR),
    Layout(pipeline=2),
]


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    return hook_tasks.with_hooks(None, tmp_path_factory.mktemp("alone"))


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_hooks_leave_what_they_leave_in_one_process(layout, alone, tmp_path):
    assert "early stopping" in alone["stop"]
    for found in pool().run(2, hook_tasks.with_hooks, layout, tmp_path):
        close(found["weights"], alone["weights"], 1e-10)
        close(found["saved"], alone["saved"], 1e-10)
        assert len(found["history"]) == len(alone["history"])
        for row, wanted in zip(found["history"], alone["history"], strict=True):
            assert row == pytest.approx(wanted, abs=1e-6)  # torchmetrics counts in single precision
        assert found["norms"] == pytest.approx(alone["norms"], abs=1e-10)
        for name in ("best", "stop", "lr"):
            assert found[name] == alone[name]
        torch.testing.assert_close(found["predicted"], alone["predicted"], rtol=0, atol=1e-10)


@functools.cache
def frozen_alone():
    return hook_tasks.frozen(None)


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_layers_freeze_and_unfreeze_as_in_one_process(layout):
    for found in pool().run(2, hook_tasks.frozen, layout):
        close(found, frozen_alone(), 1e-10)


def test_options_of_shards_do_what_they_say():
    for found, refusal in pool().run(2, hook_tasks.shard_options):
        usual, sharded, gathered = found["usual"]
        for name in ("blocks", "kept", "offload"):
            close(found[name][0], usual, 1e-10)
        assert sharded == found["blocks"][1] == 4
        assert gathered == 8  # three blocks and what is left, forward and back
        assert found["kept"][2] == 4
        close(found["bf16"][0], usual, 0.3)
        assert not same_bits(found["bf16"][0], usual)
        assert refusal.startswith("blocks is '1.1.1.*', but no module matches; did you mean")


def test_compiled_and_in_lower_precision_copies_and_shards_train_to_about_the_same():
    first, second = pool().run(2, hook_tasks.executed)
    for (compile, precision, kind), weights in first.items():
        assert same_bits(weights, second[compile, precision, kind])
        tolerance = 0.2 if precision == "bf16" else 1e-4
        close(weights, first[False, "fp32", kind], tolerance)


def test_an_overflow_in_one_process_is_an_update_that_both_leave_out():
    first, second = pool().run(2, hook_tasks.overflowing)
    assert first[:3] == second[:3]
    assert first[:3] == ([True, False, True], 2, 2.0**15)
    assert same_bits(first[3], second[3])


@pytest.mark.parametrize("layout", [Layout(replicate=2), Layout(shard=2)], ids=str)
def test_tasks_of_a_trainer_give_what_they_give_in_one_process(layout, tmp_path):
    wanted = hook_tasks.tasks(tmp_path / "alone", None)
    for found in pool().run(2, hook_tasks.tasks, tmp_path / "two", layout):
        assert found["untouched"]
        assert found["files"] == wanted["files"] == []
        assert found["rate"] == wanted["rate"] == 0.0125
        assert found["scores"] == pytest.approx(wanted["scores"], abs=1e-10)
        assert found["dev"][0] == pytest.approx(wanted["dev"][0], abs=1e-10)
        torch.testing.assert_close(found["predicted"], wanted["predicted"], rtol=0, atol=1e-10)
        close(found["weights"], wanted["weights"], 1e-10)
        assert same_bits(found["weights"], found["again"])


@pytest.mark.parametrize("rank", [0, 1])
def test_ctrl_c_to_one_process_stops_both_at_the_same_step(rank):
    first, second = pool().run(2, hook_tasks.interrupted, rank)
    assert first == second
    assert first[1] == "interrupted by Ctrl-C"
    assert 3 <= first[0] < 100_000
