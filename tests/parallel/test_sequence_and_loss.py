"""Sequence and loss parallelism: norms on parts of the sequence, losses on parts of the scores."""

import pytest

from stoker import Layout
from support.pool import pool
from support.tasks import split_scores as tasks

pytestmark = pytest.mark.process

BOTH = Layout(tensor=2, sequence_parallel=True, loss_parallel=True)


def test_split_scores_are_tensors_like_others():
    for found in pool().run(2, tasks.compare_scores):
        assert len(found) == 8
        assert max(found.values()) < 1e-12, found


def test_what_cannot_be_computed_from_split_scores_is_refused():
    for unknown, opaque in pool().run(2, tasks.wrong_uses):
        assert "a label is not one of 6 classes" in unknown
        assert "a function that torch cannot look into computes with scores" in opaque


@pytest.mark.slow
def test_the_loss_of_a_model_of_transformers_is_computed_on_parts():
    for name in ("llama", "bert"):
        expected = tasks.own_losses(None, name)
        for found in pool().run(2, tasks.own_losses, BOTH, name):
            assert found == pytest.approx(expected, abs=1e-10)


@pytest.mark.parametrize("recompute", [None, "blocks"])
def test_a_transformer_trains_on_parts_of_an_odd_sequence(recompute):
    expected = tasks.of_transformer(None)
    for found in pool().run(2, tasks.of_transformer, BOTH, recompute):
        assert found.keys() == expected.keys()
        assert max((found[n] - w).abs().max().item() for n, w in expected.items()) < 1e-10


def test_a_model_that_cannot_run_on_parts_is_refused():
    for found in pool().run(2, tasks.refusals):
        assert (
            "it uses 'scale' between its blocks, where each process has a part" in found["scaled"]
        )
        assert "returns other values after it was split" in found["reversed"]
        assert "Sequential has none whose layers are split" in found["no blocks"]
        assert 'the plan for ViTForImageClassification has no "gather"' in found["no head"]
        assert "Sequential does not offer a batch: give it a property dummy" in found["no batch"]


def test_processes_drop_other_positions_and_then_draw_the_same_numbers():
    (first, then), (second, then_too) = pool().run(2, tasks.dropped_positions)
    assert first.shape == second.shape == (2, 4, 8)
    assert not first.equal(second)
    assert then.equal(then_too)
