"""The hooks that users of other trainers know, in two processes."""

import pytest
import torch

from stoker import Layout
from support.pool import pool
from support.tasks import newer_hooks

pytestmark = pytest.mark.process

TWO = Layout(replicate=2)


def assert_close(weights, expected):
    assert weights.keys() == expected.keys()
    for name, one in expected.items():
        torch.testing.assert_close(weights[name], one, rtol=0, atol=1e-12)


def assert_rows(rows, expected):
    for row, other in zip(rows, expected, strict=True):
        assert row == pytest.approx(other, abs=1e-10)


def test_an_accumulation_schedule_and_derived_results_are_those_of_one_process():
    step, rows, weights = newer_hooks.scheduled(None)
    assert {"train/perplexity", "val/perplexity", "val/spread"} <= rows[-1].keys()
    for found in pool().run(2, newer_hooks.scheduled, TWO):
        assert found[0] == step
        assert_rows(found[1], rows)
        assert_close(found[2], weights)


def test_swa_measures_batch_norms_over_the_data_of_all_processes():
    (first, seen), (second, others) = pool().run(2, newer_hooks.averaged, TWO)
    assert_close(first, second)
    assert len(seen) > len(others)  # the second process got a padding batch
    assert sum(map(len, seen + others)) == newer_hooks.SAMPLES
    means = torch.stack([one.mean(0) for one in seen + others]).mean(0)
    variances = torch.stack([one.var(0) for one in seen + others]).mean(0)
    torch.testing.assert_close(first["0.running_mean"], means, rtol=0, atol=1e-12)
    torch.testing.assert_close(first["0.running_var"], variances, rtol=0, atol=1e-12)
    together = Layout(replicate=2, sync_batchnorm=True)
    expected, _ = newer_hooks.averaged(None)
    assert_close(pool().run(2, newer_hooks.averaged, together)[0][0], expected)


def test_the_metrics_of_heads_are_those_of_one_process():
    rows = newer_hooks.two_heads(None)
    assert {"val/class/accuracy", "val/parity/accuracy"} <= rows[-1].keys()
    for found in pool().run(2, newer_hooks.two_heads, TWO):
        assert_rows(found, rows)


def test_a_time_limit_stops_all_processes_at_the_same_step():
    first, second = pool().run(2, newer_hooks.limited)
    assert first == second
    assert first[1] == "the time limit of 0.005 minutes"


@pytest.mark.parametrize("everywhere", [True, False])
def test_a_pruned_trial_stops_all_processes_and_gets_each_result_once(everywhere):
    first, second = pool().run(2, newer_hooks.pruned, everywhere)
    assert first[:2] == second[:2]
    assert first[1].startswith("pruned at val/loss")
    assert first[2] == [5, 10]
    assert second[2] == ([] if everywhere else None)


def test_device_statistics_and_curves_are_recorded_once(tmp_path):
    (rows, points), _ = pool().run(2, newer_hooks.recorded, tmp_path)
    assert [row["step"] for row in rows] == sorted({row["step"] for row in rows})
    assert len(rows) >= 4
    assert points == {"train/loss": 2, "val/loss": 2}
