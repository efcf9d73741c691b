import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from stoker import Engine, Trainer
from stoker.nn import LayerFreezer, lr
from support.toys import batches, net, sgd


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
        self.neck = nn.Linear(2, 2)
        self.head = nn.Linear(2, 2)


@pytest.mark.row("T11")
def test_layers_are_frozen_by_name():
    freezer = LayerFreezer(Model())
    freezer.by_names(["head"])
    assert freezer.show_frozen_layers() == ["head"]
    assert freezer.status("head") == ["frozen", "frozen"]
    freezer.by_names(["head"], freeze=False)
    assert freezer.show_frozen_layers() == []


@pytest.mark.row("T11")
def test_layers_are_frozen_by_index_and_slice():
    freezer = LayerFreezer(Model())
    freezer.by_idx([-1, 0])
    assert freezer.show_frozen_layers() == ["body", "head"]
    freezer.set_all(freeze=False)
    freezer.set_slice(-1)
    assert freezer.show_frozen_layers() == ["body", "neck"]
    freezer.set_all(freeze=False)
    freezer.set_slice(slice(1, 2))
    assert freezer.show_frozen_layers() == ["neck"]
    assert freezer.status(-1) == ["unfrozen", "unfrozen"]


def test_a_dotted_name_reaches_inside():
    freezer = LayerFreezer(Model())
    freezer.by_names(["body.0"])
    assert freezer.status("body") == ["frozen", "frozen", "unfrozen", "unfrozen"]


@pytest.mark.row("T11")
def test_an_unknown_layer_is_refused_and_nothing_is_half_frozen():
    freezer = LayerFreezer(Model())
    with pytest.raises(ValueError, match="no layer named 'hed'; did you mean 'head'"):
        freezer.by_names(["neck", "hed"])
    with pytest.raises(ValueError, match="layer index 3 is out of range: the model has 3 layers"):
        freezer.by_idx([0, 3])
    assert freezer.show_frozen_layers() == []


def rates(scheduler, steps: int) -> list[float]:
    optimizer = scheduler.optimizer
    seen = []
    for _ in range(steps):
        seen.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return [*seen, optimizer.param_groups[0]["lr"]]


@pytest.mark.row("T20")
def test_the_linear_rate_is_zero_after_the_last_update_and_lr_over_n_in_it():
    model = net()
    optimizer = sgd(model, lr=1.0)
    scheduler = lr.linear(optimizer, total_steps=5)
    seen = []

    from stoker.hooks import Callback

    look = Callback(before_update=lambda run: seen.append(optimizer.param_groups[0]["lr"]))
    engine = Engine(model, optimizer, nn.CrossEntropyLoss(), lr_scheduler=scheduler)
    Trainer(engine, [look], accumulate=2).fit(batches(40), epochs=1)  # 10 batches, 5 updates
    assert seen == pytest.approx([1.0, 0.8, 0.6, 0.4, 0.2])
    assert optimizer.param_groups[0]["lr"] == 0.0


@pytest.mark.row("T20")
def test_warm_up_by_steps_wins_over_warm_up_by_ratio():
    make = lambda **options: lr.linear(sgd(net(), lr=1.0), 10, **options)
    assert rates(make(warmup_steps=4), 10)[:5] == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0])
    assert rates(make(warmup_ratio=0.2), 10)[:3] == pytest.approx([1 / 3, 2 / 3, 1.0])
    both = rates(make(warmup_steps=4, warmup_ratio=0.2), 10)
    assert both == rates(make(warmup_steps=4), 10)


@given(st.integers(1, 60), st.integers(0, 60), st.sampled_from(["linear", "cosine", "polynomial"]))
def test_every_schedule_rises_then_falls_and_is_never_zero_in_an_update(total, warmup, name):
    warmup = min(warmup, total)
    scheduler = getattr(lr, name)(sgd(nn.Linear(1, 1), lr=1.0), total, warmup_steps=warmup)
    seen = rates(scheduler, total)
    assert all(0 < rate <= 1 for rate in seen[:-1])
    assert seen[: warmup + 1] == sorted(seen[: warmup + 1])
    assert seen[warmup:] == sorted(seen[warmup:], reverse=True)
    if warmup < total:
        assert seen[-1] == pytest.approx(0.0, abs=1e-12)


def test_a_floor_is_kept_and_a_constant_stays():
    assert rates(lr.cosine(sgd(net(), lr=1.0), 4, floor=0.1), 4)[-1] == pytest.approx(0.1)
    assert rates(lr.polynomial(sgd(net(), lr=1.0), 4, power=2.0), 4)[2] == pytest.approx(0.25)
    assert rates(lr.constant(sgd(net(), lr=1.0), 4, warmup_steps=1), 4) == [0.5, 1, 1, 1, 1]


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"total_steps": 0}, "total_steps must be at least 1, got 0"),
        (
            {"total_steps": 5, "warmup_steps": 6},
            "a warm-up of 6 steps does not fit into a run of 5",
        ),
        ({"total_steps": 5, "warmup_ratio": 1.5}, "must be between 0 and 1, got 1.5"),
    ],
)
def test_schedules_that_make_no_sense_are_refused(options, text):
    with pytest.raises(ValueError, match=text):
        lr.linear(sgd(net()), **options)


def test_a_schedule_is_a_torch_scheduler():
    assert isinstance(lr.cosine(sgd(net()), 3), torch.optim.lr_scheduler.LRScheduler)


def test_a_cosine_may_have_several_cycles():
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    rates = []
    schedule = lr.cosine(optimizer, 4, cycles=2)
    for _ in range(5):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    assert rates == pytest.approx([1.0, 0.5, 1.0, 0.5, 0.0])
    with pytest.raises(ValueError, match="at least 1, got 0"):
        lr.cosine(optimizer, 4, cycles=0)
