from copy import deepcopy

import pytest
import torch
from torch import nn

from stoker import Engine, Trainer
from stoker.cli.lr_find.sweep import lr_find
from stoker.core.seed import random_state
from support.toys import loader, net, same_bits, trainer


def a_trainer(**options):
    model = net(dropout=True, norm=True)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 3)
    engine = Engine(model, optimizer, nn.CrossEntropyLoss(), lr_scheduler=scheduler)
    return Trainer(engine, [], **options)


def equal(first, second):
    if isinstance(first, torch.Tensor):
        return torch.equal(first, second)
    if isinstance(first, dict):
        return first.keys() == second.keys() and all(equal(first[k], second[k]) for k in first)
    if isinstance(first, list | tuple):
        return len(first) == len(second) and all(map(equal, first, second))
    return bool((first == second).all()) if hasattr(first, "all") else first == second


@pytest.mark.parametrize("before", [0, 3])
def test_a_sweep_leaves_everything_as_it_was_bit_for_bit(before):
    one = a_trainer()
    generator = torch.Generator().manual_seed(5)
    data = loader(shuffle=True, generator=generator)
    if before:
        one.fit(data, max_steps=before)
    state, random = deepcopy(one.engine.state_dict()), random_state()
    own, counters = generator.get_state(), (one.run.step, one.run.epoch, one.run.samples)
    training = one.engine.model.training
    lr_find(one, data, low=1e-5, high=1.0, steps=12)
    assert equal(one.engine.state_dict(), state)
    assert equal(random_state(), random)
    assert torch.equal(generator.get_state(), own)
    assert (one.run.step, one.run.epoch, one.run.samples) == counters
    assert one.engine.model.training == training


def test_a_sweep_leaves_no_gradients_behind():
    one = a_trainer()
    lr_find(one, loader(), steps=4)
    assert all(parameter.grad is None for parameter in one.engine.model.parameters())


def test_training_after_a_sweep_ends_at_the_same_bits():
    models = []
    for sweep in (False, True):
        one = a_trainer()
        data = loader(shuffle=True, generator=torch.Generator().manual_seed(5))
        torch.manual_seed(1)
        if sweep:
            lr_find(one, data, low=1e-5, high=1.0, steps=12)
        one.fit(data, epochs=2)
        models.append(one.engine.model)
    assert same_bits(*models)


def test_everything_is_as_it_was_even_when_the_sweep_fails():
    one = a_trainer()
    state = deepcopy(one.engine.state_dict())

    def failing():
        yield from list(loader())[:2]
        raise OSError("the disk is gone")

    class Data:
        def __iter__(self):
            return failing()

    with pytest.raises(OSError, match="the disk is gone"):
        lr_find(one, Data(), steps=10)
    assert equal(one.engine.state_dict(), state)


def test_the_rates_grow_by_the_same_factor_from_low_to_high():
    found = lr_find(a_trainer(), loader(), low=1e-6, high=1e-2, steps=9)
    assert found.rates == pytest.approx([1e-6 * 10 ** (i / 2) for i in range(9)])
    assert len(found.losses) == 9


def test_a_sweep_takes_more_passes_where_the_data_is_short_and_counts_updates():
    assert len(lr_find(trainer(), loader(8), low=1e-6, high=1e-4, steps=11).rates) == 11
    accumulating = a_trainer(accumulate=3)
    assert len(lr_find(accumulating, loader(20), low=1e-6, high=1e-4, steps=5).rates) == 5


def test_a_sweep_ends_when_the_loss_has_gone_up():
    model = nn.Linear(4, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    one = Trainer(Engine(model, optimizer, nn.CrossEntropyLoss()), [])
    found = lr_find(one, loader(), low=1e-3, high=1e9, steps=100)
    assert len(found.rates) < 100
    assert found.suggestion is not None
    assert found.rates[0] < found.suggestion < found.rates[-1]


def test_a_loss_that_never_falls_has_no_suggestion():
    found = lr_find(trainer(), loader(4), low=1e-20, high=1e-19, steps=5)
    assert found.suggestion is None


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"low": 1.0, "high": 0.1}, "less than high, got low=1 high=0.1"),
        ({"low": 0.0}, "low must be positive"),
        ({"steps": 2}, "steps must be at least 3, got 2"),
    ],
)
def test_a_sweep_that_cannot_be_is_refused(options, words):
    with pytest.raises(ValueError, match=words):
        lr_find(trainer(), loader(), **options)


def test_nothing_is_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    lr_find(a_trainer(run_dir="runs/x"), loader(), steps=4)
    assert list(tmp_path.iterdir()) == []
