"""Schedules that are formulas are classes like those of torch."""

import inspect

import torch
from torch.optim.lr_scheduler import LRScheduler

from stoker.dialects.rates import schedule


def _falling(step, base, total_steps, low=0.0):
    """Fall to ``low``."""
    return low + (1 - low) * (1 - step / total_steps)


FallingLR = schedule("FallingLR", _falling, total_steps=..., low=0.0, last_epoch=-1)


def sgd():
    return torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=2.0)


def rates_of(scheduler, count):
    found = []
    for _ in range(count):
        found += scheduler.get_last_lr()
        scheduler.optimizer.step()
        scheduler.step()
    return found


def test_a_schedule_is_a_class_with_the_options_of_its_formula():
    assert issubclass(FallingLR, LRScheduler)
    assert list(inspect.signature(FallingLR).parameters) == [
        "optimizer", "total_steps", "low", "last_epoch",
    ]  # fmt: skip
    made = FallingLR(sgd(), 4, low=0.5)
    assert isinstance(made, FallingLR)
    assert (made.total_steps, made.low) == (4, 0.5)
    assert rates_of(made, 3) == [2.0, 1.75, 1.5]


def test_a_subclass_changes_the_arguments_and_the_rates():
    class Doubled(FallingLR):
        def __init__(self, optimizer, total):
            super().__init__(optimizer, total_steps=total)

        def get_lr(self):
            return [2 * rate for rate in super().get_lr()]

    assert list(inspect.signature(Doubled).parameters) == ["optimizer", "total"]
    assert rates_of(Doubled(sgd(), 4), 2) == [4.0, 3.0]


def test_a_state_has_the_position_and_leaves_the_options_to_the_script():
    made = FallingLR(sgd(), 4)
    rates_of(made, 2)
    longer = FallingLR(sgd(), 8)
    longer.load_state_dict(made.state_dict())
    longer.step()
    assert (longer.total_steps, longer.get_last_lr()) == (8, [1.25])
