import math

import pytest
import torch
from torch import nn

from stoker import Engine, Hook, Trainer, hooks
from stoker.hooks import Callback
from support.toys import batches, net, same_bits, samples, sgd, trainer, weights


class Says(Hook):
    """Gives a validation result from a list."""

    priority = 20

    def __init__(self, values, name="val/score"):
        self.values = iter(values)
        self.result = name

    def after_val(self, run):
        if run.task == "fit":
            run.record(self.result, next(self.values))


def epochs_until_stopped(values, **options) -> int:
    run = trainer(Says(values), hooks.EarlyStopping("val/score", **options))
    run.fit(batches(4), batches(4), epochs=len(values))
    return run.run.epoch


@pytest.mark.slow
@pytest.mark.row("T14")
@pytest.mark.parametrize(
    ("values", "options", "expected"),
    [
        ([1, 2, 3, 4, 5], {"patience": 1}, 5),
        ([5, 4, 3, 2, 1], {"patience": 2}, 3),
        ([1, 1, 1, 1, 1], {"patience": 3}, 4),
        ([0, 0, 0, 0, 0], {"patience": 2}, 3),
        ([1, 0, 2, 1, 1, 1], {"patience": 2}, 5),
        ([1, 2, 3, 4, 5], {"patience": 2, "mode": "min"}, 3),
        ([1.0, 1.05, 1.1, 1.15], {"patience": 2, "min_delta": 0.2}, 3),
        ([1, 2, 3, 4], {"patience": 2, "baseline": 10}, 2),
        ([11, 12, 13, 14], {"patience": 2, "baseline": 10}, 4),
        ([1, math.nan, 5, 6], {"patience": 3}, 2),
        ([1, math.inf, 5, 6], {"patience": 3}, 2),
        ([1, math.nan, 2, 3], {"patience": 3, "check_finite": False}, 4),
    ],
)
def test_early_stopping_counts_evaluations_without_improvement(values, options, expected):
    assert epochs_until_stopped(values, **options) == expected


@pytest.mark.slow
@pytest.mark.row("T14")
def test_an_unknown_monitor_is_an_error_after_the_first_evaluation():
    run = trainer(
        hooks.Loss(), hooks.Metrics("accuracy"), hooks.EarlyStopping("val/acuracy", mode="max")
    )
    with pytest.raises(
        ValueError, match=r"there is no result 'val/acuracy'; did you mean 'val/accuracy'.*val/loss"
    ):
        run.fit(batches(), batches(4), epochs=5)
    assert run.run.step == 5


def test_an_unknown_monitor_of_training_is_an_error_after_the_first_epoch():
    run = trainer(hooks.Loss(), hooks.EarlyStopping("train/los", mode="min"))
    with pytest.raises(ValueError, match="did you mean 'train/loss'"):
        run.fit(batches(), epochs=5)
    assert run.run.epoch == 1


def test_watching_validation_without_any_is_refused_before_training():
    run = trainer(hooks.Loss(), hooks.EarlyStopping("val/loss"))
    with pytest.raises(ValueError, match="fit\\(\\) got no validation loader"):
        run.fit(batches(), epochs=1)
    assert run.run.step == 0


def test_of_several_loaders_only_the_watched_one_counts():
    class Both(Hook):
        priority = 20

        def after_val(self, run):
            run.record(f"{run.val_name}/score", run.epoch)

    run = trainer(Both(), hooks.EarlyStopping("val/b/score", patience=1))
    run.fit(batches(4), {"a": batches(4), "b": batches(4), "c": batches(4)}, epochs=4)
    assert run.run.epoch == 4


def test_validation_between_steps_counts_too():
    run = trainer(Says([3, 2, 1, 0, 0]), hooks.EarlyStopping("val/score", patience=2))
    run.fit(batches(40), batches(4), epochs=1, validate_every=2)
    assert run.run.step == 6


@pytest.mark.row("T14")
def test_counters_survive():
    first = hooks.EarlyStopping("val/score", patience=3)
    trainer(Says([5, 4, 3]), first).fit(batches(4), batches(4), epochs=3)
    second = hooks.EarlyStopping("val/score", patience=3)
    second.load_state_dict(first.state_dict())
    run = trainer(Says([4.5]), second)
    run.fit(batches(4), batches(4), epochs=1)
    assert "has not improved in 3 evaluations (now 4.5, best 5)" in run.history.stop_reason


def test_looking_at_a_finished_run_does_not_wear_out_its_patience():
    stopping = hooks.EarlyStopping("val/loss", patience=2)
    run = trainer(hooks.Loss(), stopping)
    run.fit(batches(), batches(4), epochs=1)
    for _ in range(5):
        run.evaluate(batches(4))
    assert stopping.waited == 0


@pytest.mark.parametrize(
    ("name", "mode"),
    [("val/loss", "min"), ("val/accuracy", "max"), ("val/f1", "max"), ("val/mse", "min")],
)
def test_the_direction_is_found_from_plain_names(name, mode):
    assert hooks.EarlyStopping(name).monitor.mode == mode


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"monitor": "val/thing"}, "pass mode='min' or 'max'"),
        ({"patience": 0}, "patience must be at least 1, got 0"),
        ({"mode": "maximum"}, "mode must be 'min' or 'max', got 'maximum'"),
        ({"min_delta": -1}, "min_delta must not be negative, got -1"),
    ],
)
def test_wrong_options_are_refused(options, text):
    with pytest.raises(ValueError, match=text):
        hooks.EarlyStopping(**options)


def poisoned(at: int):
    x, y = samples(20)
    data = [(a.clone(), b) for a, b in zip(x.split(4), y.split(4), strict=True)]
    data[at][0][0, 0] = math.nan
    return data


def test_a_nan_stops_the_run_before_the_update():
    model = net()
    seen = []
    guard = hooks.NaNGuard()
    run = trainer(guard, Callback(after_step=lambda run: seen.append(weights(model))), model=model)
    run.fit(poisoned(2), epochs=1)
    assert run.run.step == 2
    assert run.history.stop_reason.startswith("the loss is NaN or infinite at step 2")
    assert same_bits(seen[1], model)


def test_a_nan_is_left_out_and_is_no_step():
    model = net()
    scheduler_optimizer = sgd(model)
    scheduler = torch.optim.lr_scheduler.StepLR(scheduler_optimizer, 1)
    run = Trainer(
        Engine(model, scheduler_optimizer, nn.CrossEntropyLoss(), lr_scheduler=scheduler),
        [hooks.NaNGuard("skip"), hooks.EMA(0.5)],
    )
    run.fit(poisoned(2), epochs=1)
    assert (run.run.step, scheduler.last_epoch) == (4, 4)
    assert all(torch.isfinite(p).all() for p in model.parameters())


def test_a_nan_can_be_ignored():
    guard = hooks.NaNGuard("ignore")
    run = trainer(guard)
    run.fit(poisoned(2), epochs=1)
    assert run.run.step == 5
    assert guard.found == 3


def test_a_gradient_that_is_infinite_is_found_though_the_loss_is_finite():
    model = nn.Linear(4, 1)
    step = lambda e, b: torch.sqrt((e(b[0]) * 0).abs()).sum() + 1.0
    run = Trainer(Engine(model, sgd(model)), [hooks.NaNGuard()], step=step)
    run.fit(batches(), epochs=1)
    assert "a gradient is NaN or infinite" in run.history.stop_reason


def test_an_unknown_action_is_refused():
    with pytest.raises(ValueError, match="'stop', 'skip' or 'ignore', got 'warn'"):
        hooks.NaNGuard("warn")


def test_fp16_continues_after_a_skipped_update_with_gradients_of_true_size():
    model = net()
    norms = []
    look = Callback(
        before_update=lambda run: norms.append(
            float(torch.cat([p.grad.flatten() for p in model.parameters()]).norm())
        )
    )
    run = Trainer(
        Engine(model, sgd(model), nn.CrossEntropyLoss(), precision="fp16"),
        [hooks.NaNGuard("skip"), look],
    )
    run.fit(poisoned(2), epochs=1)
    assert run.run.step == 4
    assert all(norm < 10 for norm in norms if math.isfinite(norm))
    assert run.engine.scaler.get_scale() == 2.0**15


def test_an_overflow_of_fp16_is_the_scalers_business():
    class Large(nn.CrossEntropyLoss):
        def forward(self, outputs, targets):
            return super().forward(outputs, targets) * 1e30

    model = net()
    run = Trainer(Engine(model, sgd(model), Large(), precision="fp16"), [hooks.NaNGuard("stop")])
    run.fit(batches(), epochs=1)
    assert run.history.stop_reason is None
    assert run.engine.scaler.get_scale() < 2.0**16
