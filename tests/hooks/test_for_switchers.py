"""Hooks that users of other trainers know."""

import math
from contextlib import suppress

import optuna
import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, update_bn

import stoker
from stoker import Engine, Hook, Output, Trainer, hooks
from stoker.core import dist
from stoker.core.errors import StokerError
from support.toys import batches, engine, loader, net, trainer

DATA = batches(24)


class KilledError(Exception):
    pass


class Kill(Hook):
    """Ends the attempt at a step, like a kill between two steps."""

    observes = True

    def __init__(self, step):
        self.step = step

    def after_step(self, run):
        if run.step == self.step:
            raise KilledError


def in_two_attempts(make, step, folder, *, epochs=4, model=None):
    """Train with a kill at a step, and once more from the checkpoint."""
    for more in ([Kill(step)], []):
        torch.manual_seed(0)
        one = Trainer(
            engine(model()),
            [hooks.Loss(), make(), hooks.Checkpoint("1st"), *more],
            run_dir=folder,
        )
        with suppress(KilledError):
            one.fit(DATA, DATA, epochs=epochs)
    return one


def weights(trainer):
    return {name: one.clone() for name, one in trainer.engine.model.state_dict().items()}


def assert_same(one, other):
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)


def plain_swa(model, *, start, epochs):
    """The same by torch's own tools."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    averaged = AveragedModel(model)
    for epoch in range(1, epochs + 1):
        for x, y in DATA:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
        if epoch >= start:
            averaged.update_parameters(model)
    update_bn(DATA, averaged)
    return averaged.module.state_dict()


def test_swa_ends_with_the_weights_of_torchs_own():
    one = trainer(hooks.SWA(start_epoch=2), model=net(norm=True))
    one.fit(DATA, epochs=4)
    expected = plain_swa(net(norm=True), start=2, epochs=4)
    for name, value in one.engine.model.state_dict().items():
        torch.testing.assert_close(value, expected[name], rtol=1e-6, atol=1e-7)


def test_swa_without_batch_norm_update_leaves_the_statistics_of_training():
    one = trainer(hooks.SWA(start_epoch=2, update_bn=False), model=net(norm=True))
    one.fit(DATA, epochs=3)
    other = trainer(model=net(norm=True))
    other.fit(DATA, epochs=3)
    assert torch.equal(one.engine.model[1].running_mean, other.engine.model[1].running_mean)


@pytest.mark.parametrize("step", [3, 6, 13, 23])
def test_swa_ends_at_the_same_bits_after_a_kill(step, tmp_path):
    complete = trainer(
        hooks.Loss(),
        hooks.SWA(start_epoch=2),
        hooks.Checkpoint("1st"),
        model=net(norm=True),
        run_dir=tmp_path / "a",
    )
    complete.fit(DATA, DATA, epochs=4)
    killed = in_two_attempts(
        lambda: hooks.SWA(start_epoch=2), step, tmp_path / "b", model=lambda: net(norm=True)
    )
    assert_same(weights(killed), weights(complete))


class Sizes(Hook):
    def __init__(self):
        self.seen = []

    def before_step(self, run):
        self.seen.append(len(run.batches))


def test_an_accumulation_schedule_changes_the_batches_of_a_step_by_epoch():
    sizes = Sizes()
    trainer(hooks.AccumulationSchedule({2: 2, 3: 4}), sizes).fit(DATA, epochs=3)
    assert sizes.seen == [1] * 6 + [2] * 3 + [4, 2]


def test_a_schedule_that_never_changes_is_the_plain_accumulation():
    one = trainer(hooks.AccumulationSchedule({1: 3}))
    one.fit(DATA, epochs=2)
    other = trainer(accumulate=3)
    other.fit(DATA, epochs=2)
    assert_same(weights(one), weights(other))


@pytest.mark.parametrize("step", [4, 7, 8, 10])
def test_an_accumulation_schedule_ends_at_the_same_bits_after_a_kill(step, tmp_path):
    def make():
        return hooks.AccumulationSchedule({2: 2, 3: 4})

    complete = trainer(hooks.Loss(), make(), hooks.Checkpoint("1st"), run_dir=tmp_path / "a")
    complete.fit(DATA, DATA, epochs=3)
    killed = in_two_attempts(make, step, tmp_path / "b", epochs=3, model=net)
    assert_same(weights(killed), weights(complete))
    assert killed.run.step == complete.run.step == 11


@pytest.fixture
def clock():
    """A clock that a test moves."""
    dist.set_now(0.0)
    yield dist.set_now
    dist.set_now(None)


class Tick(Hook):
    def __init__(self, set_now):
        self.set_now = set_now
        self.seconds = 0.0

    def before_step(self, run):
        self.seconds += 20
        self.set_now(self.seconds)


def test_a_time_limit_ends_the_run_after_its_minutes(clock):
    one = trainer(Tick(clock), hooks.TimeLimit(minutes=1))
    assert one.fit(DATA, epochs=9).stop_reason == "the time limit of 1 minutes"
    assert one.run.step == 3


def test_a_time_limit_counts_the_minutes_of_earlier_attempts(clock, tmp_path):
    for step in (2, 99):
        clock(0.0)
        one = Trainer(
            engine(),
            [Tick(clock), hooks.TimeLimit(minutes=1), hooks.Checkpoint("1st"), Kill(step)],
            run_dir=tmp_path,
        )
        with suppress(KilledError):
            one.fit(DATA, epochs=9)
        if step == 2:
            assert one.run.step == 2
    assert one.run.step == 2  # 20 seconds before the kill, and 40 on the clock of the next step


def perplexity(loss):
    return math.exp(loss)


def test_results_derive_from_others():
    one = trainer(hooks.Loss(), hooks.Derive(perplexity=perplexity))
    history = one.fit(DATA, {"a": DATA, "b": DATA}, epochs=2)
    for row in history:
        for part in ("train", "val/a", "val/b"):
            assert row[f"{part}/perplexity"] == math.exp(row[f"{part}/loss"])


def test_a_derived_result_of_an_unknown_one_is_named():
    with pytest.raises(ValueError, match="perplexity is computed from 'los'"):
        trainer(hooks.Loss(), hooks.Derive(perplexity=lambda los: los)).fit(DATA, DATA, epochs=1)


def test_a_derived_result_of_an_unknown_one_is_named_without_validation():
    with pytest.raises(ValueError, match="there is no result 'train/los'"):
        trainer(hooks.Loss(), hooks.Derive(perplexity=lambda los: los)).fit(DATA, epochs=1)


def test_a_function_without_names_of_arguments_derives_nothing():
    with pytest.raises(ValueError, match="whose arguments have no names: pass a function such as"):
        hooks.Derive(perplexity=torch.exp)


def test_a_derived_result_can_be_monitored():
    derive = hooks.Derive(perplexity=perplexity)
    one = trainer(hooks.Loss(), derive, hooks.EarlyStopping("val/perplexity", patience=2))
    assert len(one.fit(DATA, DATA, epochs=2)) == 2


def test_a_plain_function_is_a_metric_over_all_samples():
    def share(outputs, targets):
        assert len(outputs) == len(targets) == 24
        return (outputs.argmax(1) == targets).float().mean()

    one = trainer(hooks.Metrics(share, "accuracy", on="both"))
    (row,) = one.fit(DATA, DATA, epochs=1)
    assert row["val/share"] == pytest.approx(row["val/accuracy"])
    assert row["train/share"] == pytest.approx(row["train/accuracy"])


def test_a_function_over_training_data_survives_a_kill(tmp_path):
    def make():
        return hooks.Metrics(mean=lambda outputs, targets: outputs.mean(), on="train")

    complete = trainer(hooks.Loss(), make(), hooks.Checkpoint("1st"), run_dir=tmp_path / "a")
    complete.fit(DATA, DATA, epochs=2)
    killed = in_two_attempts(make, 9, tmp_path / "b", epochs=2, model=net)
    assert killed.history["train/mean"] == complete.history["train/mean"]


class TwoHeads(nn.Module):
    def __init__(self):
        super().__init__()
        self.digit, self.parity = nn.Linear(4, 3), nn.Linear(4, 2)

    def forward(self, x):
        return {"digit": self.digit(x), "parity": self.parity(x)}


def two_heads(*more):
    model = TwoHeads()

    def step(engine, batch):
        x, y = batch
        outputs, targets = engine(x), {"digit": y, "parity": y % 2}
        losses = [nn.functional.cross_entropy(outputs[h], targets[h]) for h in outputs]
        return Output(sum(losses), outputs, targets)

    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return Trainer(Engine(model, optimizer), list(more), step=step)


def test_one_metrics_hook_serves_several_heads():
    torch.manual_seed(0)
    one = two_heads(hooks.Metrics("accuracy", heads=["digit", "parity"], on="both"))
    (row,) = one.fit(DATA, DATA, epochs=1)
    x, y = torch.cat([x for x, _ in DATA]), torch.cat([y for _, y in DATA])
    with torch.no_grad():
        outputs = one.engine.model.eval()(x)
    for head, targets in (("digit", y), ("parity", y % 2)):
        right = (outputs[head].argmax(1) == targets).float().mean().item()
        assert row[f"val/{head}/accuracy"] == pytest.approx(right)
        assert f"train/{head}/accuracy" in row


def test_a_head_that_is_not_there_is_named():
    with pytest.raises(ValueError, match="the outputs have no head 'size'"):
        two_heads(hooks.Metrics("accuracy", heads=["size"])).fit(DATA, DATA, epochs=1)


def test_the_path_of_weights_may_contain_counters_and_results(tmp_path):
    path = tmp_path / "{epoch:02d}-{step}-{val/loss:.3f}.safetensors"
    one = trainer(hooks.Loss(), hooks.SaveWeights(path, every="1ep"))
    history = one.fit(DATA, DATA, epochs=2)
    losses = [f"{loss:.3f}" for loss in history["val/loss"]]
    names = sorted(file.name for file in tmp_path.iterdir())
    assert names == [f"01-6-{losses[0]}.safetensors", f"02-12-{losses[1]}.safetensors"]


def test_a_result_that_does_not_exist_in_the_path_of_weights_is_named(tmp_path):
    path = tmp_path / "{val/los:.3f}.safetensors"
    one = trainer(hooks.Loss(), hooks.SaveWeights(path, every="1ep"))
    with pytest.raises(ValueError, match="did you mean 'val/loss'"):
        one.fit(DATA, DATA, epochs=1)
    with pytest.raises(ValueError, match="is no template"):
        hooks.SaveWeights("{epoch.safetensors")


def test_device_statistics_are_recorded_at_their_period():
    one = trainer(hooks.DeviceStats(2))
    one.fit(DATA, epochs=1)
    recorded = one.run.events.latest()
    assert recorded["device/cpu"][0] >= 0
    assert recorded["device/ram"][0] > 0.01
    assert recorded["device/ram"][1] == 6


class Trial:
    """What the hook uses of an Optuna trial."""

    def __init__(self, prune_at):
        self.prune_at = prune_at
        self.reported = []

    def report(self, value, step):
        self.reported.append((step, value))

    def should_prune(self):
        return len(self.reported) == self.prune_at


def test_a_pruned_trial_ends_as_stopped_and_not_as_failed(tmp_path):
    trial = Trial(prune_at=2)
    prune = hooks.Prune(trial)
    one = Trainer(engine(), [*hooks.default(progress=False), prune], run_dir=tmp_path)
    history = one.fit(DATA, DATA, epochs=5)
    assert history.stop_reason.startswith("pruned at val/loss")
    assert [step for step, _ in trial.reported] == [6, 12]
    assert one.run.error is None
    assert "the run failed" not in (tmp_path / "log.txt").read_text()
    with pytest.raises(optuna.TrialPruned, match="pruned at val/loss"):
        prune.check()
    one.fit(DATA, DATA, epochs=5)
    prune.check()


def test_the_number_of_steps_is_known_before_a_fit():
    for options in ({}, {"accumulate": 4}, {"accumulate": 4, "last_window": "drop"}):
        one = trainer(**options)
        one.fit(loader(24), epochs=2)
        assert stoker.data.total_steps(loader(24), epochs=2, **options) == one.run.step
    one.fit(loader(24), epochs=3, limit_train_batches=4)
    assert stoker.data.total_steps(loader(24), epochs=3, limit_train_batches=4) == 12
    with pytest.raises(ValueError, match="without a length"):
        stoker.data.total_steps((one for one in DATA), epochs=2)


def test_the_batch_size_finder_changes_nothing_and_finds_the_largest():
    class Small(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = net()

        def forward(self, x):
            if len(x) > 12:
                raise torch.OutOfMemoryError("no memory for this")
            return self.inner(x)

    one = Trainer(engine(Small()), [hooks.Loss()])
    before = weights(one)
    size = stoker.data.find_batch_size(
        lambda size: one.fit(loader(64, size), fast_dev_run=True), start=2
    )
    assert size == 8
    assert_same(weights(one), before)
    assert one.run.step == 0
    with pytest.raises(ValueError, match="not even a batch of 16"):
        stoker.data.find_batch_size(
            lambda size: one.fit(loader(64, size), fast_dev_run=True), start=16
        )
    with pytest.raises(ZeroDivisionError):
        stoker.data.find_batch_size(lambda size: 1 / 0)


def test_patterns_give_parts_of_a_model_rates_of_their_own():
    model = nn.ModuleDict({"backbone": net(), "head": nn.Linear(3, 2)})
    groups = stoker.nn.parameter_groups(
        model, {"lr": 0.1}, patterns={"backbone.*": {"lr_ratio": 0.1}, "*.bias": {"momentum": 0.5}}
    )
    rates = {id(p): group["lr"] for group in groups for p in group["params"]}
    for name, parameter in model.named_parameters():
        assert rates[id(parameter)] == pytest.approx(0.01 if "backbone" in name else 0.1)
    optimizer = torch.optim.SGD(groups, lr=0.1)
    scheduler = stoker.nn.lr.linear(optimizer, 10)
    optimizer.step()
    scheduler.step()
    ratios = {group["lr"] / group["initial_lr"] for group in optimizer.param_groups}
    assert len({round(ratio, 9) for ratio in ratios}) == 1
    with pytest.raises(ValueError, match="no parameter matches the pattern 'trunk"):
        stoker.nn.parameter_groups(model, patterns={"trunk.*": {"lr": 0.1}})
    with pytest.raises(ValueError, match="lr_ratio multiplies"):
        stoker.nn.parameter_groups(model, patterns={"head.*": {"lr_ratio": 0.1}})


def test_a_summary_counts_parameters_without_running_the_model():
    model = net()
    model[0].requires_grad_(False)
    lines = stoker.nn.summary(model).splitlines()
    assert lines[0].split() == ["layer", "type", "parameters", "trainable"]
    assert lines[1].split() == ["0", "Linear", "40", "0"]
    assert lines[-1].split() == ["total", "67", "27"]


@pytest.mark.parametrize(
    "call",
    [
        lambda: hooks.TimeLimit(0),
        lambda: hooks.SWA(0),
        lambda: hooks.AccumulationSchedule({0: 2}),
        lambda: hooks.AccumulationSchedule([1, 2]),
        hooks.Derive,
        lambda: hooks.Derive(a=3),
        lambda: hooks.Prune(object()),
        lambda: hooks.Metrics("accuracy", heads="digit"),
        lambda: stoker.nn.summary(5),
    ],
)
def test_wrong_arguments_are_named(call):
    with pytest.raises((ValueError, TypeError, StokerError)):
        call()
