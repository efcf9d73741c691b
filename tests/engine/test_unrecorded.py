"""An optimizer's step is the same with and without torch's note, and whoever listens is heard."""

import functools
import warnings

import pytest
import torch
from torch import nn
from torch.optim import optimizer as optimizers
from torch.optim.lr_scheduler import StepLR

from stoker.engine import optimizer_fast_path as unrecorded
from support.toys import same_bits

KINDS = [
    functools.partial(torch.optim.SGD, momentum=0.9),
    torch.optim.Adam,
    torch.optim.AdamW,
    torch.optim.RMSprop,
    torch.optim.Adagrad,
    torch.optim.NAdam,
]


def made(kind=torch.optim.SGD):
    torch.manual_seed(0)
    model = nn.Linear(4, 3)
    return model, kind(model.parameters(), lr=0.1)


def trained(kind, step, *, scheduled):
    model, optimizer = made(kind)
    scheduler = StepLR(optimizer, 2) if scheduled else None
    for _ in range(5):
        optimizer.zero_grad()
        model(torch.ones(2, 4)).square().sum().backward()
        step(optimizer)
        if scheduler is not None:
            scheduler.step()
    return model.state_dict()


@pytest.mark.parametrize("scheduled", [False, True])
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: getattr(kind, "func", kind).__name__)
def test_the_weights_are_those_of_the_optimizers_own_step(kind, scheduled):
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # a scheduler that saw no step would warn
        ours = trained(kind, unrecorded.step, scheduled=scheduled)
    assert same_bits(ours, trained(kind, lambda one: one.step(), scheduled=scheduled))


@pytest.mark.parametrize("register", ["register_step_pre_hook", "register_step_post_hook"])
def test_hooks_of_the_optimizer_are_called(register):
    _, optimizer = made()
    calls = []
    getattr(optimizer, register)(lambda *args: calls.append(1))
    unrecorded.step(optimizer)
    assert calls == [1]


@pytest.mark.parametrize("when", ["pre", "post"])
def test_hooks_of_all_optimizers_are_called(when):
    _, optimizer = made()
    calls = []
    register = getattr(optimizers, f"register_optimizer_step_{when}_hook")
    handle = register(lambda *args: calls.append(1))
    try:
        unrecorded.step(optimizer)
    finally:
        handle.remove()
    assert calls == [1]


@pytest.mark.parametrize("scheduled", [False, True])
def test_a_step_that_somebody_has_put_in_its_place_is_called(scheduled):
    _, optimizer = made()
    if scheduled:
        StepLR(optimizer, 2)
    calls = []
    before = optimizer.step

    @functools.wraps(before)
    def mine(*args):
        calls.append(1)
        return before(*args)

    optimizer.step = mine
    unrecorded.step(optimizer)
    assert calls == [1]


def test_an_optimizer_that_torch_has_not_made_is_called():
    class Counting(torch.optim.SGD):
        steps = 0

        def step(self, closure=None):
            self.steps += 1

    _, optimizer = made(Counting)
    unrecorded.step(optimizer)
    assert optimizer.steps == 1


def test_a_profiler_sees_the_step_by_its_name():
    _, optimizer = made()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        unrecorded.step(optimizer)
    assert any(event.key == "Optimizer.step#SGD.step" for event in profiler.key_averages())
