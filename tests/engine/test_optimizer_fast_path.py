"""The fast path of an optimizer's step computes the same, and never bypasses code of others."""

import functools
import types
import warnings

import pytest
import torch
from torch import nn
from torch.optim import optimizer as optimizers
from torch.optim.lr_scheduler import StepLR

from stoker import Engine
from stoker.engine import optimizer_fast_path
from support.toys import same_bits

OPTIMIZERS = [
    functools.partial(torch.optim.SGD, momentum=0.9),
    torch.optim.Adam,
    torch.optim.AdamW,
    torch.optim.RMSprop,
    torch.optim.Adagrad,
    torch.optim.NAdam,
]


def build(kind=torch.optim.SGD):
    torch.manual_seed(0)
    model = nn.Linear(4, 3)
    return model, kind(model.parameters(), lr=0.1)


def new_sgd():
    """A copy of torch's SGD that no instance has been made of, for class-level patches."""
    step = torch.optim.SGD.step
    while hasattr(step, "hooked"):
        step = step.__wrapped__
    return type("SGD", (torch.optim.SGD,), {"step": step})


def train(kind, step, *, scheduled):
    model, optimizer = build(kind)
    scheduler = StepLR(optimizer, 2) if scheduled else None
    for _ in range(5):
        optimizer.zero_grad()
        model(torch.ones(2, 4)).square().sum().backward()
        step(optimizer)
        if scheduler is not None:
            scheduler.step()
    return model.state_dict()


def tracer_of(function, calls, *, wraps):
    def trace(*args, **kwargs):
        calls.append(1)
        return function(*args, **kwargs)

    return functools.wraps(function)(trace) if wraps else trace


class Proxy:
    """A descriptor that forwards every attribute to what it wraps, as wrapt's wrappers do."""

    def __init__(self, function, calls):
        self.__dict__.update(function=function, calls=calls)

    def __getattr__(self, name):
        return getattr(self.function, name)

    def __get__(self, instance, owner=None):
        return self if instance is None else functools.partial(self, instance)

    def __call__(self, *args, **kwargs):
        self.calls.append(1)
        return self.function(*args, **kwargs)


@pytest.mark.parametrize("scheduled", [False, True])
@pytest.mark.parametrize("kind", OPTIMIZERS, ids=lambda kind: getattr(kind, "func", kind).__name__)
def test_the_weights_are_those_of_the_optimizers_own_step(kind, scheduled):
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # a scheduler that saw no step would warn
        ours = train(kind, optimizer_fast_path.step, scheduled=scheduled)
    assert same_bits(ours, train(kind, lambda one: one.step(), scheduled=scheduled))


@pytest.mark.parametrize("scheduled", [False, True])
def test_the_fast_path_is_taken_for_torchs_own_step(scheduled, monkeypatch):
    _, optimizer = build()
    if scheduled:
        StepLR(optimizer, 2)
    recorded = []
    record = torch.autograd.profiler.record_function
    monkeypatch.setattr(
        torch.autograd.profiler,
        "record_function",
        lambda name: recorded.append(name) or record(name),
    )
    optimizer_fast_path.step(optimizer)
    assert recorded == []
    optimizer.step()
    assert recorded == ["Optimizer.step#SGD.step"]


@pytest.mark.parametrize("register", ["register_step_pre_hook", "register_step_post_hook"])
def test_hooks_of_the_optimizer_are_called(register):
    _, optimizer = build()
    calls = []
    getattr(optimizer, register)(lambda *args: calls.append(1))
    optimizer_fast_path.step(optimizer)
    assert calls == [1]


@pytest.mark.parametrize("when", ["pre", "post"])
def test_hooks_of_all_optimizers_are_called(when):
    _, optimizer = build()
    calls = []
    register = getattr(optimizers, f"register_optimizer_step_{when}_hook")
    handle = register(lambda *args: calls.append(1))
    try:
        optimizer_fast_path.step(optimizer)
    finally:
        handle.remove()
    assert calls == [1]


@pytest.mark.parametrize("scheduled", [False, True])
@pytest.mark.parametrize("wraps", [False, True], ids=["plain", "functools.wraps"])
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_patch_of_the_class_is_called(when, wraps, scheduled):
    kind, calls = new_sgd(), []
    if when == "after":
        build(kind)
    kind.step = tracer_of(kind.step, calls, wraps=wraps)
    _, optimizer = build(kind)
    if scheduled:
        StepLR(optimizer, 2)
    for _ in range(3):
        optimizer_fast_path.step(optimizer)
    assert calls == [1, 1, 1]


@pytest.mark.parametrize("wraps", [False, True], ids=["plain", "functools.wraps"])
def test_a_patch_of_the_class_reaches_instances_that_exist(wraps):
    kind, calls = new_sgd(), []
    _, optimizer = build(kind)
    optimizer_fast_path.step(optimizer)
    kind.step = tracer_of(kind.step, calls, wraps=wraps)
    for _ in range(3):
        optimizer_fast_path.step(optimizer)
    assert calls == [1, 1, 1]


@pytest.mark.parametrize("wraps", [False, True], ids=["plain", "functools.wraps"])
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_patch_of_a_base_class_is_called_as_often_as_by_the_optimizer_itself(when, wraps):
    base, calls = new_sgd(), []
    kind = type("Mine", (base,), {})
    if when == "after":
        build(base)
        build(kind)
    base.step = tracer_of(base.step, calls, wraps=wraps)
    _, optimizer = build(kind)
    optimizer.step()
    expected, calls[:] = len(calls), []
    optimizer_fast_path.step(optimizer)
    assert len(calls) == expected == 1


def test_a_patch_by_an_object_that_imitates_the_step_is_called():
    kind, calls = new_sgd(), []
    _, optimizer = build(kind)
    kind.step = Proxy(kind.step, calls)
    optimizer_fast_path.step(optimizer)
    assert calls == [1]


@pytest.mark.parametrize("scheduled", ["never", "before", "after"])
@pytest.mark.parametrize("wraps", [False, True], ids=["plain", "functools.wraps"])
def test_a_patch_of_the_instance_is_called(wraps, scheduled):
    _, optimizer = build()
    calls = []
    if scheduled == "before":
        StepLR(optimizer, 2)
        optimizer.step = tracer_of(optimizer.step, calls, wraps=wraps)
    else:
        trace = tracer_of(type(optimizer).step, calls, wraps=wraps)
        optimizer.step = types.MethodType(trace, optimizer)
        if scheduled == "after":
            StepLR(optimizer, 2)
    optimizer_fast_path.step(optimizer)
    assert calls == [1]


def test_the_step_of_a_third_party_subclass_is_called():
    class Counting(torch.optim.SGD):
        steps = 0

        def step(self, closure=None):
            self.steps += 1
            return super().step(closure)

    plain = train(torch.optim.SGD, optimizer_fast_path.step, scheduled=False)
    assert same_bits(train(Counting, optimizer_fast_path.step, scheduled=False), plain)
    _, optimizer = build(Counting)
    optimizer_fast_path.step(optimizer)
    assert optimizer.steps == 1


def test_the_step_of_an_optimizer_that_is_not_torchs_is_called():
    class Lean:
        __slots__ = ("param_groups", "steps")

        def __init__(self):
            self.param_groups, self.steps = [], 0

        def step(self):
            self.steps += 1

    optimizer = Lean()
    optimizer_fast_path.step(optimizer)
    assert optimizer.steps == 1


def test_a_profiler_sees_the_step_by_its_name():
    _, optimizer = build()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        optimizer_fast_path.step(optimizer)
    assert any(event.key == "Optimizer.step#SGD.step" for event in profiler.key_averages())


@pytest.mark.parametrize("level", ["base class", "class", "instance"])
def test_a_patch_of_zero_grad_is_called(level, monkeypatch):
    model, optimizer = build(new_sgd())
    calls = []
    places = {"base class": optimizers.Optimizer, "class": type(optimizer), "instance": optimizer}
    place = places[level]
    monkeypatch.setattr(place, "zero_grad", tracer_of(place.zero_grad, calls, wraps=True))
    Engine(model, optimizer, nn.MSELoss(), device="cpu").zero_grad()
    assert calls == [1]
