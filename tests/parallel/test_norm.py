"""Norms of gradients that are spread over processes, against those of one."""

import math

import pytest
import torch
from torch import nn

from stoker.parallel.grad_norm import clip_grad_norm, total_norm
from support.pool import pool
from support.tasks import norm as tasks
from support.tasks.norm import gradients, with_gradient

pytestmark = pytest.mark.process

each_norm = pytest.mark.parametrize("norm_type", [1.0, 2.0, 3.0, math.inf])


def clipped_alone(norm_type):
    parameters = [with_gradient(g) for g in gradients()]
    norm = nn.utils.clip_grad_norm_(parameters, 0.1, norm_type)
    return norm, [p.grad for p in parameters]


def assert_near(found, expected):
    (norm, grads), (norm_alone, grads_alone) = found, expected
    assert norm.item() == pytest.approx(norm_alone.item(), rel=1e-13)
    for grad, alone in zip(grads, grads_alone, strict=True):
        assert torch.allclose(grad, alone, rtol=1e-13, atol=0)


@each_norm
def test_plain_gradients_are_clipped_by_torch_to_the_last_bit(norm_type):
    parameters = [with_gradient(g.float()) for g in gradients()]
    others = [with_gradient(g.float()) for g in gradients()]
    norm = clip_grad_norm(iter(parameters), 0.1, norm_type)
    assert torch.equal(norm, nn.utils.clip_grad_norm_(others, 0.1, norm_type))
    pairs = zip(parameters, others, strict=True)
    assert all(torch.equal(one.grad, other.grad) for one, other in pairs)


def test_nothing_to_clip_has_no_norm():
    assert clip_grad_norm([nn.Parameter(torch.ones(2))], 1.0).item() == 0.0
    assert total_norm([]).item() == 0.0


def test_a_limit_that_is_not_passed_changes_nothing():
    parameters = [with_gradient(g) for g in gradients()]
    clip_grad_norm(parameters, 1e6)
    assert all(map(torch.equal, [p.grad for p in parameters], gradients()))


@each_norm
def test_gradients_of_several_meshes_have_the_norm_of_one_vector(norm_type):
    expected = clipped_alone(norm_type)
    for found in pool().run(4, tasks.clipped_mixed, norm_type):
        assert_near(found, expected)
    for norm in pool().run(4, tasks.norm_of_mixed, norm_type):
        assert norm == pytest.approx(expected[0].item(), rel=1e-13)


def test_gradients_of_several_meshes_are_clipped_by_value():
    expected = [g.clamp(-0.3, 0.3) for g in gradients()]
    for found in pool().run(4, tasks.clipped_values):
        assert all(map(torch.equal, found, expected))


@each_norm
def test_stages_share_one_norm_and_count_a_tied_parameter_once(norm_type):
    norm, (a, b, c, d, e) = clipped_alone(norm_type)
    first, second = pool().run(2, tasks.over_stages, norm_type)
    assert_near(first, (norm, [a, b, e]))
    assert_near(second, (norm, [c, d, e]))


def test_a_stage_without_gradients_learns_the_norm_of_the_others():
    norms = pool().run(2, tasks.a_stage_without_gradients)
    assert norms == pytest.approx([total_norm(gradients()).item()] * 2)


@pytest.mark.parametrize(
    ("name", "alone"), [("AdamW", (None, True)), ("SGD", (None, None)), ("Adagrad", (None, None))]
)
def test_mixed_groups_are_stepped_one_parameter_at_a_time(name, alone):
    for one_mesh, several in pool().run(2, tasks.settled, name):
        assert one_mesh == alone
        assert several == (False, False)


def test_an_optimizer_follows_its_parameters_in_order_and_keeps_their_state():
    for found in pool().run(2, tasks.repointed_order):
        assert found == {
            "params": [[True], [True]],
            "rates": [1e-3, 0.5],
            "states": 2,
            "sharded": True,
            "same": True,
            "step": 1.0,
        }
