"""Colossal-AI's names on Stoker, by the rows of what its two documents promise."""

import importlib
import logging
import operator
import re
import sys
import time

import pytest
import torch
from torch import nn

import stoker.dialects.colossalai as colossalai
from stoker import config
from stoker.checkpoint import Checkpoints
from stoker.core import dist
from stoker.dialects.colossalai.amp import AMP_TYPE
from stoker.dialects.colossalai.core import global_context as gpc
from stoker.dialects.colossalai.engine import (
    Engine,
    InterleavedPipelineSchedule,
    NonPipelineSchedule,
    NoPipelineSchedule,
    PipelineSchedule,
)
from stoker.dialects.colossalai.logging import get_dist_logger
from stoker.dialects.colossalai.registry import HOOKS, Registry
from stoker.dialects.colossalai.trainer import Trainer, hooks
from stoker.dialects.colossalai.trainer.metric import Metric
from stoker.dialects.colossalai.utils import MultiTimer, get_dataloader
from support.toys import batches, loader, net, plain_loop, samples, sgd

GOLDEN = [
    "after_hook_is_attached", "before_train",
    *["before_train_epoch", *["before_train_iter", "after_train_iter"] * 2, "after_train_epoch",
      "before_test", "before_test_epoch", "before_test_iter", "after_test_iter",
      "after_test_epoch", "after_test"] * 2,
    "after_train",
]  # fmt: skip


@pytest.fixture(autouse=True)
def no_config():
    """Each test begins without a config."""
    gpc.config = type(gpc.config)()
    yield
    gpc.config = type(gpc.config)()


def engine(model=None, **options):
    model = model or net()
    return Engine(model, sgd(model), nn.CrossEntropyLoss(), **options)


def recorder(into, priority=10):
    """A hook that notes every point it sees."""

    def at(point):
        return lambda self, trainer, *seen: into.append((point, *seen))

    points = dict.fromkeys(GOLDEN)
    return type("Recorder", (hooks.BaseHook,), {p: at(p) for p in points})(priority)


def same(one, other):
    return all(map(torch.equal, one.state_dict().values(), other.state_dict().values()))


# The engine


@pytest.mark.slow
@pytest.mark.row("C01")
def test_an_own_loop_equals_the_plain_one():
    model, twin = net(dropout=True), net(dropout=True)
    data, optimizer = batches(80), torch.optim.Adam(model.parameters())
    torch.manual_seed(3)
    plain_loop(twin, torch.optim.Adam(twin.parameters()), data)
    torch.manual_seed(3)
    made, train, _, _ = colossalai.initialize(model, optimizer, nn.CrossEntropyLoss(), data)
    made.train()
    for x, y in train:
        made.zero_grad()
        loss = made.criterion(made(x), y)
        made.backward(loss)
        made.step()
    assert same(model, twin)


@pytest.mark.row("C02")
def test_initialize_returns_four_with_none_for_what_was_not_given():
    model, data = net(), loader()
    made, train, test, rates = colossalai.initialize(model, sgd(model), nn.MSELoss(), data)
    assert isinstance(made, Engine)
    assert train is data
    assert test is rates is None
    by_class, *_ = colossalai.initialize(net, torch.optim.AdamW)
    assert isinstance(by_class.optimizer, torch.optim.AdamW)


@pytest.mark.row("C03")
def test_a_call_is_the_model_and_the_mode_is_one():
    model = net()
    made = engine(model)
    x = samples()[0]
    assert torch.equal(made(x), model(x))
    made.eval()
    assert (made.training, model.training) == (False, False)
    made.train()
    assert (made.training, model.training) == (True, True)


@pytest.mark.row("C29")
def test_a_norm_of_zero_leaves_gradients_alone_and_a_positive_one_bounds_them():
    for limit, bounded in ((0.0, False), (1e-3, True)):
        made = engine(clip_grad_norm=limit)
        made.backward(made.calc_loss(made(samples()[0]), samples()[1]))
        before = [p.grad.clone() for p in made.model.parameters()]
        assert made.step() is True
        norm = torch.cat([p.grad.flatten() for p in made.model.parameters()]).norm()
        assert (float(norm) <= 1.001e-3) is bounded
        assert all(map(torch.equal, before, [p.grad for p in made.model.parameters()])) != bounded


def test_a_gradient_that_is_known_goes_back():
    made, twin = engine(), net()
    x = samples()[0]
    grad = torch.randn(20, 3)
    made.backward_by_grad(made(x), grad)
    twin(x).backward(grad)
    assert all(
        torch.equal(a.grad, b.grad)
        for a, b in zip(made.model.parameters(), twin.parameters(), strict=True)
    )


@pytest.mark.row("C15", "C27")
def test_an_own_loop_accumulates_and_drops_the_rest():
    gpc.load_config(dict(gradient_accumulation=4))
    model = net()
    optimizer = sgd(model)
    rates = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    made, train, _, lr = colossalai.initialize(
        model, optimizer, nn.CrossEntropyLoss(), loader(40), lr_scheduler=rates
    )
    updates = 0
    for x, y in train:
        made.zero_grad()
        made.backward(made.criterion(made(x), y))
        updates += made.step()
        lr.step()
    assert (len(train), updates) == (8, 2)
    assert lr.get_last_lr() == [0.025]


@pytest.mark.slow
@pytest.mark.row("C27")
def test_the_trainer_makes_one_step_of_four_batches():
    gpc.load_config(dict(gradient_accumulation=4))
    model, seen = net(), []
    made, train, _, _ = colossalai.initialize(model, sgd(model), nn.CrossEntropyLoss(), loader(40))
    trainer = Trainer(made)
    trainer.fit(train, epochs=1, hooks=[recorder(seen)])
    shapes = [s[1].shape for s in seen if s[0] == "after_train_iter"]
    assert shapes == [(16, 3), (16, 3)]  # those of four batches, joined
    whole = net()
    plain_loop(whole, sgd(whole), batches(32, 16))
    for a, b in zip(model.parameters(), whole.parameters(), strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.row("C30")
def test_an_overflow_skips_the_update_lowers_the_scale_and_moves_no_rate():
    gpc.load_config(dict(fp16=dict(mode=AMP_TYPE.TORCH, init_scale=256.0, growth_interval=50)))
    model = net()
    optimizer = sgd(model)
    rates = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    made, *_ = colossalai.initialize(model, optimizer, nn.CrossEntropyLoss())
    data = batches(12)
    data[1] = (data[1][0] * 1e30, data[1][1])
    trainer = Trainer(made)
    trainer.fit(data, 1, hooks=[hooks.LossHook(), hooks.LRSchedulerHook(rates, by_epoch=False)])
    assert trainer.cur_step == 2
    assert made.core.scaler.get_scale() == 128.0
    assert rates.get_last_lr() == [0.025]
    assert trainer.states["metrics"]["train"]["Loss"].get_accumulated_value() < 10


def test_operator_hooks_are_called_around_every_module():
    seen = []

    class Watch:
        def pre_fwd_exec(self, module, *_):
            seen.append("forward")

        def post_bwd_exec(self, module, *_):
            seen.append("backward")

    made = engine(nn.Sequential(nn.Linear(4, 3)), ophook_list=[Watch()])
    made.backward(made.criterion(made(samples()[0].requires_grad_()), samples()[1]))
    assert seen.count("forward") == seen.count("backward") == 2
    assert len(made.ophooks) == 1


def test_gradient_handlers_of_the_config_run_once_before_each_update():
    calls = []

    @colossalai.registry.GRADIENT_HANDLER.register_module
    class Notes(colossalai.engine.BaseGradientHandler):
        def handle_gradient(self):
            calls.append(next(self._model.parameters()).grad is not None)

    gpc.load_config(
        dict(
            gradient_handler=[dict(type="Notes"), dict(type="DataParallelGradientHandler")],
            gradient_accumulation=2,
        )
    )
    model = net()
    made, *_ = colossalai.initialize(model, sgd(model), nn.CrossEntropyLoss())
    Trainer(made).fit(batches(16), epochs=1)
    assert calls == [True, True]


# Schedules


@pytest.mark.slow
@pytest.mark.row("Z01")
@pytest.mark.parametrize("options", [dict(step_schedule=NoPipelineSchedule()), dict()])
def test_an_engine_of_the_chinese_document_trains_like_the_plain_loop(options):
    model, twin = net(), net()
    optimizer, other = torch.optim.Adam(model.parameters()), torch.optim.Adam(twin.parameters())
    made = Engine(
        model=model,
        criterion=nn.CrossEntropyLoss(),
        optimizer=optimizer,
        lr_scheduler=colossalai.nn.lr_scheduler.CosineAnnealingLR(optimizer, 1000),
        **options,
    )
    expected = options.get("step_schedule", made.schedule)
    assert made.schedule is expected
    assert isinstance(expected, NonPipelineSchedule)
    assert not made.uses_pipeline
    rates = torch.optim.lr_scheduler.CosineAnnealingLR(other, 1000)
    Trainer(made).fit(batches(), epochs=2)
    plain_loop(twin, other, batches(), epochs=2, scheduler=rates)
    assert optimizer.param_groups[0]["lr"] == pytest.approx(other.param_groups[0]["lr"], rel=1e-6)
    for one, same_one in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(one, same_one, rtol=1e-6, atol=0)


@pytest.mark.row("Z01")
def test_the_two_names_of_a_schedule_are_not_mixed():
    schedule = NonPipelineSchedule()
    assert engine(schedule=schedule).schedule is engine(step_schedule=schedule).schedule
    with pytest.raises(ValueError, match="pass only one of them"):
        engine(schedule=schedule, step_schedule=schedule)
    with pytest.raises(TypeError, match="expected one such as PipelineSchedule"):
        engine(step_schedule="1f1b")


@pytest.mark.row("Z07")
def test_a_schedule_runs_a_batch_as_requested():
    made = engine()
    x, y = batches()[0]
    with pytest.raises(ValueError, match="needs forward_only=True"):
        made.execute_schedule(iter(batches()), forward_only=False, return_loss=False)
    output, label, loss = made.execute_schedule(iter(batches()), forward_only=True)
    assert torch.equal(output, made(x))
    assert torch.equal(label, y)
    assert all(p.grad is None for p in made.model.parameters())
    output, label, loss = made.execute_schedule(iter(batches()), return_output_label=False)
    assert (output, label) == (None, None)
    assert float(loss) == pytest.approx(made.criterion(made(x), y).item())
    assert all(p.grad is not None for p in made.model.parameters())
    output, _, loss = made.execute_schedule(iter(batches()), forward_only=True, return_loss=False)
    assert loss is None
    assert output.shape == (4, 3)


@pytest.mark.row("Z07")
@pytest.mark.parametrize(
    ("kind", "wrong"),
    [
        (NonPipelineSchedule, lambda stage_output, batch: batch),
        (lambda f: PipelineSchedule(2, f), lambda batch: batch),
        (lambda f: InterleavedPipelineSchedule(2, 2, f), lambda batch: batch),
    ],
)
def test_a_function_of_the_wrong_arity_is_refused_at_once(kind, wrong):
    with pytest.raises(ValueError, match="data_process_func takes"):
        kind(wrong)


def test_a_function_reads_batches_and_tuples_and_dicts_are_the_criterions_arguments():
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 3)

        def forward(self, x, scale):
            return {"a": self.layer(x), "b": self.layer(x) * scale}

    def criterion(a, b, y, weight):
        return nn.functional.cross_entropy(a, y) + weight.mean() * b.square().mean()

    def read(batch):
        x, y = batch["x"], batch["y"]
        return {"x": x, "scale": 2.0}, {"y": y, "weight": torch.ones(len(y))}

    x, y = samples()
    model, seen = Two(), []
    made = Engine(model, sgd(model), criterion, schedule=NonPipelineSchedule(read))
    trainer = Trainer(made)
    trainer.fit([{"x": x, "y": y}] * 2, epochs=1, hooks=[recorder(seen)])
    outputs, labels, loss = next(s[1:] for s in seen if s[0] == "after_train_iter")
    assert set(outputs) == {"a", "b"}
    assert set(labels) == {"y", "weight"}
    assert loss.ndim == 0


def test_outputs_by_name_with_labels_by_place_are_refused():
    class Named(nn.Linear):
        def forward(self, x):
            return {"a": super().forward(x)}

    model = Named(4, 3)
    made = Engine(model, sgd(model), lambda **_: None)
    with pytest.raises(TypeError, match="expected a dict of labels"):
        made.execute_schedule(iter([(samples()[0], [samples()[1]])]))


def test_a_custom_schedule_is_not_passed_over_in_silence():
    class Own(NonPipelineSchedule):
        def forward_backward_step(self, engine, data_iter, *_):
            return next(data_iter), None, None

    made = engine(schedule=Own())
    assert made.execute_schedule(iter([7]))[0] == 7
    with pytest.raises(TypeError, match="Own overrides forward_backward_step"):
        Trainer(made)


def test_the_oldest_style_makes_a_step_a_complete_iteration():
    made, data = engine(gradient_accumulation=2), iter(batches(20))
    before = [p.clone() for p in made.model.parameters()]
    output, *_ = made.step(data, is_last_iteration=True)
    assert output.shape == (4, 3)
    assert not torch.equal(before[0], next(made.model.parameters()))
    assert next(data, None) is None


# The trainer and its points


@pytest.mark.row("C04")
def test_a_trainer_alone_fits_tests_and_predicts():
    trainer = Trainer(engine())
    trainer.fit(loader(), epochs=2, max_steps=3)
    assert trainer.cur_step == 3
    trainer.evaluate(loader())
    assert trainer.predict(samples()[0]).shape == (20, 3)


@pytest.mark.row("C06")
def test_what_is_no_hook_is_named():
    trainer = Trainer(engine())
    with pytest.raises(TypeError, match=r"hooks\[1\] is 7 of type int"):
        trainer.fit(loader(), 1, hooks=[hooks.LossHook(), 7])
    with pytest.raises(TypeError, match="expected what colossalai.initialize returned"):
        Trainer(net())


@pytest.mark.row("C07")
def test_hooks_run_by_priority_and_the_order_is_logged(tmp_path):
    order, given = [], []
    for name, priority in (("late", 20), ("first", 5), ("second", 5)):
        hook = hooks.BaseHook(priority)
        hook.before_train = lambda trainer, name=name: order.append(name)
        given.append(hook)
    before = list(given)
    logger = get_dist_logger("order")
    logger.log_to_file(tmp_path)
    Trainer(engine(), logger=logger).fit(loader(), 1, hooks=given)
    assert order == ["first", "second", "late"]
    assert given == before
    text = (tmp_path / "rank_0.log").read_text()
    assert re.findall(r"Using BaseHook for training, priority = (\d+)", text) == ["5", "5", "20"]
    assert text.count("Lower value means higher priority") == 1


@pytest.mark.row("C08")
def test_a_hook_that_never_calls_super_still_runs():
    class Forgetful(hooks.BasicHook):
        def __init__(self):
            self.runs = 0

        def after_train_iter(self, trainer, output, label, loss):
            self.runs += 1

    hook = Forgetful()
    Trainer(engine()).fit(loader(), 1, hooks=[hook])
    assert (hook.runs, hook.priority) == (5, 10)


@pytest.mark.row("C09")
def test_all_points_fire_in_the_golden_order():
    seen, one, other = [], [], []
    Trainer(engine()).fit(
        batches(8), 2, test_dataloader=batches(4), hooks=[recorder(one), recorder(other)]
    )
    assert [s[0] for s in one] == [s[0] for s in other] == GOLDEN
    assert set(dir(hooks.BaseHook)) >= set(GOLDEN)
    for name in ("one", "other"):
        hook = recorder(seen)
        hook.before_test = lambda trainer, name=name: seen.append(f"{name} test")
        hook.before_test_epoch = lambda trainer, name=name: seen.append(f"{name} epoch")
        one.append(hook)
    seen.clear()
    Trainer(engine()).evaluate(batches(4), hooks=one[-2:])
    assert [s for s in seen if isinstance(s, str)] == [
        "one test", "other test", "one epoch", "other epoch",
    ]  # fmt: skip


@pytest.mark.row("C10")
def test_only_the_ends_of_iterations_get_what_they_made():
    seen, data = [], batches(8)
    Trainer(engine()).fit(data, 1, hooks=[recorder(seen)])
    assert {len(s) for s in seen if s[0] != "after_train_iter"} == {1}
    labels = [s[2] for s in seen if s[0] == "after_train_iter"]
    assert all(map(torch.equal, labels, [y for _, y in data]))
    x = torch.randn(4, 4)
    model = nn.Linear(4, 1)
    made = Engine(model, sgd(model), lambda out: out.square().mean())
    Trainer(made).fit([x], 1, hooks=[recorder(seen)])
    assert seen[-3][2] is None


def test_hooks_of_the_older_style_have_their_trainer_and_get_none():
    seen = []

    @HOOKS.register_module
    class Older(hooks.BaseHook):
        def __init__(self, trainer, interval, priority=3):
            super().__init__(trainer, priority)
            self.interval = interval

        def before_train(self):
            seen.append(self.trainer.max_epochs)

        def after_train_iter(self, output, label, loss):
            seen.append(output.shape)

    described = dict(type="Older", interval=2)
    Trainer(engine()).fit(batches(4), 1, hooks_cfg=[described])
    assert seen == [1, (4, 3)]
    assert described == dict(type="Older", interval=2)


@pytest.mark.row("X03")
def test_an_error_in_a_hook_names_it():
    hook = hooks.LossHook()
    hook.before_test_epoch = lambda trainer: 1 / 0
    with pytest.raises(ZeroDivisionError) as caught:
        Trainer(engine()).fit(loader(), 1, test_dataloader=loader(), hooks=[hook])
    assert "raised by hook 'LossHook.before_test_epoch'" in caught.value.__notes__[0]


def test_counters_are_those_of_old():
    seen = []

    class Counts(hooks.BaseHook):
        def before_train_iter(self, trainer):
            seen.append(("before", trainer.cur_epoch, trainer.cur_step))

        def after_train_iter(self, trainer, *_):
            seen.append(("after", trainer.cur_epoch, trainer.cur_step))

        def after_train_epoch(self, trainer):
            seen.append(("epoch", trainer.cur_epoch, trainer.cur_step))

    trainer = Trainer(engine())
    trainer.fit(batches(4), 2, hooks=[Counts(1)])
    assert seen == [
        ("before", 0, 0), ("after", 0, 0), ("epoch", 0, 1),
        ("before", 1, 1), ("after", 1, 1), ("epoch", 1, 2),
    ]  # fmt: skip
    assert (trainer.cur_epoch, trainer.cur_step, trainer.max_epochs) == (2, 2, 2)
    seen.clear()
    trainer.fit(batches(4), 3, hooks=[Counts(1)])
    assert seen[0] == ("before", 2, 2)
    later = Trainer(engine())
    later.cur_epoch = 2
    later.fit(batches(8), 3)
    assert (later.cur_epoch, later.cur_step, later.steps_per_epoch) == (3, 6, 2)


@pytest.mark.row("C23")
@pytest.mark.parametrize(("interval", "tested"), [(1, [1, 2, 3, 4, 5]), (2, [2, 4, 5])])
def test_tests_follow_completed_multiples_and_the_end(interval, tested):
    found = []
    hook = hooks.BaseHook(1)
    hook.before_test = lambda trainer: found.append(trainer.cur_epoch + 1)
    Trainer(engine()).fit(
        batches(4), 5, test_dataloader=batches(4), test_interval=interval, hooks=[hook]
    )
    assert found == tested


@pytest.mark.row("C24")
def test_max_steps_ends_within_an_epoch_and_closes_it():
    seen = []
    trainer = Trainer(engine())
    trainer.fit(loader(), epochs=9, max_steps=7, hooks=[recorder(seen)])
    assert trainer.cur_step == 7
    assert [s[0] for s in seen].count("after_train_epoch") == 2
    assert seen[-1][0] == "after_train"


@pytest.mark.row("C25")
def test_an_evaluation_fires_its_points_alone_and_changes_nothing():
    model, seen = net(norm=True), []
    made = engine(model)
    made.train()
    before = {k: v.clone() for k, v in model.state_dict().items()}
    Trainer(made).evaluate(loader(), hooks=[recorder(seen)], display_progress=True)
    assert {s[0] for s in seen} == {p for p in GOLDEN if "test" in p or "attached" in p}
    assert all(torch.equal(before[k], v) for k, v in model.state_dict().items())
    assert made.training


@pytest.mark.row("C26")
def test_predict_takes_tensors_lists_and_dicts():
    class Pair(nn.Linear):
        def forward(self, a, b):
            return {"sum": super().forward(a + b)}

    x = torch.randn(5, 4)
    trainer = Trainer(engine(Pair(4, 2)))
    expected = nn.Linear.forward(trainer.engine.model, x + x)
    for data in ([x, x], (x, x), {"a": x, "b": x}):
        assert torch.equal(trainer.predict(data)["sum"], expected)
    assert trainer.engine.training


# Metrics


EIGHT = ["LossHook", "LRSchedulerHook", "AccuracyHook", "TensorboardHook", "LogMetricByEpochHook",
         "LogMemoryByEpochHook", "LogTimingByEpochHook", "SaveCheckpointHook"]  # fmt: skip


@pytest.mark.row("C11")
def test_metrics_are_shared_by_their_names():
    found = {}
    model = net()
    optimizer = sgd(model)
    made = Engine(model, optimizer, nn.CrossEntropyLoss())
    look = hooks.BaseHook(99)
    look.after_test = lambda trainer: found.update(trainer.states["metrics"])
    rates = torch.optim.lr_scheduler.ConstantLR(optimizer)
    Trainer(made).fit(
        loader(), 1, test_dataloader=loader(),
        hooks=[hooks.LossHook(), hooks.LRSchedulerHook(rates, True), hooks.AccuracyHook(), look],
    )  # fmt: skip
    assert list(found["train"]) == ["Loss", "LR"]
    assert list(found["test"]) == ["Loss", "Accuracy"]
    x, y = samples()
    with torch.no_grad():
        right = (model(x).argmax(1) == y).double().mean()
    assert found["test"]["Accuracy"].get_accumulated_value() == pytest.approx(float(right))


@pytest.mark.row("C11")
def test_a_function_may_say_what_is_right():
    hook = hooks.AccuracyHook(accuracy_func=lambda output, label: (label == 0).sum())
    trainer = Trainer(engine())
    trainer.evaluate(loader(22), hooks=[hook, hooks.Accuracy3DHook()])
    share = float((samples(22)[1] == 0).double().mean())
    assert hook.metric.get_accumulated_value() == pytest.approx(share)
    assert hook.metric.get_last_step_value() == float((samples(22)[1][20:] == 0).double().mean())
    with pytest.raises(ValueError, match="AccuracyHook needs outputs"):
        trainer.evaluate(loader(), hooks=[hooks.AccuracyHook()], return_output_label=False)


class Largest(Metric):
    """The largest output of an epoch."""

    def __init__(self):
        super().__init__(epoch_only=True)
        self.reset()

    def reset(self):
        self.value = self.last = float("-inf")

    def update(self, output):
        self.last = output.max().item()
        self.value = max(self.value, self.last)

    def get_last_step_value(self):
        return self.last

    def get_accumulated_value(self):
        return self.value

    @staticmethod
    def is_better(a, b):
        return a > b


class LargestHook(hooks.MetricHook):
    """Registers it."""

    def __init__(self, priority):
        super().__init__(priority)
        self.metric = Largest()

    def after_hook_is_attached(self, trainer):
        super().after_hook_is_attached(trainer)
        trainer.states["metrics"]["train"]["Largest"] = self.metric

    def before_train_epoch(self, trainer):
        self.metric.reset()

    def after_train_iter(self, trainer, output, label, loss):
        self.metric.update(output)


@pytest.mark.row("C12")
def test_an_own_metric_is_in_the_line_and_visible_to_later_hooks(tmp_path):
    seen = []

    def looks(name, priority):
        hook = hooks.BaseHook(priority)
        hook.after_train_iter = lambda trainer, *_: seen.append(
            (name, trainer.states["metrics"]["train"]["Largest"].get_last_step_value())
        )
        return hook

    logger = get_dist_logger("own")
    logger.log_to_file(tmp_path, suffix="own")
    Trainer(engine()).fit(
        batches(4), 1,
        hooks=[looks("late", 6), LargestHook(5), looks("early", 4),
               hooks.LogMetricByEpochHook(logger)],
    )  # fmt: skip
    assert [name for name, _ in seen] == ["early", "late"]
    assert seen[0][1] == float("-inf") < seen[1][1]
    line = (tmp_path / "rank_0_own.log").read_text()
    assert line == f"colossalai - own - INFO: [Epoch 1 / Train]: Largest = {seen[1][1]:.5g}\n"


@pytest.mark.slow
@pytest.mark.row("C13", "C14")
def test_a_mean_is_over_samples_and_may_be_read_twice():
    model = net()
    made = Engine(model, torch.optim.SGD(model.parameters(), lr=0.0), nn.CrossEntropyLoss())
    hook = hooks.LossHook()
    Trainer(made).fit(loader(22), 1, test_dataloader=loader(22), hooks=[hook])
    x, y = samples(22)
    expected = nn.functional.cross_entropy(model(x), y).item()
    for metric in (hook.train_loss, hook.test_loss, hook.train_loss, hook.test_loss):
        assert metric.get_accumulated_value() == pytest.approx(expected, rel=1e-6)


@pytest.mark.slow
@pytest.mark.row("C15")
@pytest.mark.parametrize(("by_epoch", "moves"), [(False, 4), (True, 2)])
@pytest.mark.parametrize("through_initialize", [False, True])
def test_with_accumulation_rates_move_per_update_or_epoch(by_epoch, moves, through_initialize):
    gpc.load_config(dict(gradient_accumulation=4))
    model = net()
    optimizer = sgd(model, lr=1.0)
    rates = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    made, train, _, lr = colossalai.initialize(
        model, optimizer, nn.CrossEntropyLoss(), loader(40), lr_scheduler=rates
    )
    hook = hooks.LRSchedulerHook(lr if through_initialize else rates, by_epoch=by_epoch)
    Trainer(made).fit(train, 2, hooks=[hook])
    assert optimizer.param_groups[0]["lr"] == 0.5**moves


@pytest.mark.row("C16")
def test_the_rate_shown_is_the_one_used():
    model = net()
    optimizer = sgd(model, lr=1.0)
    made = Engine(model, optimizer, nn.CrossEntropyLoss())
    hook = hooks.LRSchedulerHook(
        lr_scheduler_cfg=dict(type="LinearWarmupLR", warmup_steps=2), by_epoch=False
    )
    shown, used = [], []
    optimizer.register_step_pre_hook(lambda o, *_: used.append(o.param_groups[0]["lr"]))
    look = hooks.BaseHook(50)
    look.after_train_iter = lambda trainer, *_: shown.append(hook.metric.get_last_step_value())
    look.before_train = lambda trainer: shown.append(hook.metric.get_last_step_value())
    Trainer(made).fit(batches(20), 1, hooks=[hook, look])
    assert shown == [used[0], *used]
    assert used == pytest.approx([1 / 3, 2 / 3, 1.0, 2 / 3, 1 / 3])


@pytest.mark.slow
@pytest.mark.row("C17")
def test_one_line_for_training_and_one_for_each_test(tmp_path):
    logger = get_dist_logger("lines")
    logger.log_to_file(tmp_path)
    Trainer(engine()).fit(
        loader(), 3, test_dataloader=loader(), hooks=[
            hooks.LossHook(), hooks.AccuracyHook(), hooks.LogMetricByEpochHook(logger, interval=2),
        ],
    )  # fmt: skip
    number = r"\d+(\.\d{1,5})?(e[-+]\d+)?"
    text = r"colossalai - lines - INFO: \[Epoch (\d+) / (Train|Test)\]: Loss = " + number
    lines = (tmp_path / "rank_0.log").read_text().splitlines()
    found = [re.fullmatch(text + rf"( \| Accuracy = {number})?", line) for line in lines]
    assert [(m[1], m[2]) for m in found] == [
        ("2", "Train"), ("2", "Test"), ("3", "Train"), ("3", "Test"),
    ]  # fmt: skip


@pytest.mark.slow
@pytest.mark.row("C18")
def test_times_cover_the_steps_of_this_epoch_and_warm_up_is_left_out_once(tmp_path):
    logger, timer, counts = get_dist_logger("times"), MultiTimer(), []
    logger.log_to_file(tmp_path)
    look = hooks.BaseHook(50)
    look.after_train_epoch = lambda trainer: counts.append(timer.get_timer("train-step").count)
    Trainer(engine(), timer=timer, logger=logger).fit(
        loader(), 2, test_dataloader=loader(), hooks=[
            hooks.LogTimingByEpochHook(timer, logger, ignore_num_train_steps=2), look
        ],
    )  # fmt: skip
    assert counts == [3, 5]
    text = (tmp_path / "rank_0.log").read_text()
    pattern = r"Train-step: last = \S+ s, mean = \S+ s .*#steps/epoch = 5"
    assert len(re.findall(pattern, text)) == 2
    assert len(re.findall(r"Test\]: Test-epoch: last|Test-step: last", text)) >= 2
    assert {name for name, _ in timer} == {"Train-epoch", "Train-step", "Test-epoch", "Test-step"}


@pytest.mark.row("C18")
def test_timers_reset_by_name_or_all_and_a_running_one_has_no_reading():
    timer = MultiTimer()
    timer.start("a")
    with pytest.raises(RuntimeError, match="running"):
        timer.get_timer("a").get_elapsed_time()
    assert timer.stop("a", keep_in_history=True) > 0
    timer.start("b")
    assert timer.get_timer("b").lap() >= 0
    timer.stop("b", keep_in_history=True)
    assert timer.get_timer("A").get_history_mean() == timer.get_timer("a").get_history_sum() > 0
    timer.reset("a")
    assert [t.has_history for _, t in timer] == [False, True]
    timer.reset()
    assert not any(t.has_history for _, t in timer)
    timer.set_status(False)
    assert not timer.is_on
    timer.start("c")
    assert timer.stop("c") is None
    with pytest.raises(KeyError, match="no timer 'c'"):
        timer.get_timer("c")


@pytest.mark.row("C19")
def test_memory_is_shown_without_an_accelerator(tmp_path):
    logger = get_dist_logger("memory")
    logger.log_to_file(tmp_path, mode="w")
    hook = hooks.LogMemoryByEpochHook(logger, log_eval=True, report_cpu=True)
    Trainer(engine()).fit(loader(), 1, test_dataloader=loader(), hooks=[hook])
    text = (tmp_path / "rank_0.log").read_text()
    assert re.findall(r"INFO: (.*): memory host at most \d+\.\d MB", text) == [
        "Before Train", "[Epoch 1 / Train]", "[Epoch 1 / Test]",
    ]  # fmt: skip


def scalars_in(folder):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(folder))
    found.Reload()
    return {tag: [(e.step, e.value) for e in found.Scalars(tag)] for tag in found.Tags()["scalars"]}


@pytest.mark.slow
@pytest.mark.row("C20")
def test_tensorboard_has_metrics_of_steps_and_epochs(tmp_path):
    hook = hooks.TensorboardHook(log_dir=tmp_path, ranks=[0])
    Trainer(engine()).fit(
        loader(), 2, test_dataloader=loader(),
        hooks=[hook, hooks.LossHook(), hooks.AccuracyHook()],
    )  # fmt: skip
    (file,) = (tmp_path / "global_rank_0").iterdir()
    assert file.name.endswith("_rank_0")
    found = scalars_in(tmp_path / "global_rank_0")
    assert set(found) == {"Loss/train", "Loss/test", "Accuracy/test"}
    assert [step for step, _ in found["Loss/train"]] == list(range(1, 11))
    assert [step for step, _ in found["Loss/test"]] == [5, 10]


@pytest.mark.row("C20")
def test_without_tensorboard_the_package_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(ImportError, match="'tensorboard'"):
        hooks.TensorboardHook(tmp_path)


def test_throughput_needs_no_timer_of_the_callers(tmp_path):
    hook = hooks.ThroughputHook(ignored_steps=2, tflop_per_step=3.0)
    trainer = Trainer(engine())
    trainer.fit(loader(), 1, test_dataloader=loader(), hooks=[hook, hooks.LogMetricByStepHook()])
    metric = trainer.states["metrics"]["train"]["Throughput"]
    counted = metric.state_dict()["_all"]
    samples = sum(map(operator.mul, counted["values"], counted["weights"]))
    assert samples == pytest.approx(12)
    assert metric.get_accumulated_value() > 0
    assert re.fullmatch(r"\S+ samples/s, \S+ TFLOPs", trainer.states["step_metrics"]["throughput"])


# Checkpoints


def aliases(folder):
    return {p.name: p.readlink().name for p in sorted(folder.iterdir()) if p.is_symlink()}


@pytest.mark.slow
@pytest.mark.row("C21")
def test_checkpoints_follow_completed_epochs_and_the_last(tmp_path):
    folder = tmp_path / "not" / "there"
    Trainer(engine()).fit(loader(), 5, hooks=[hooks.SaveCheckpointHook(2, folder, suffix="x")])
    assert aliases(folder) == {
        "epoch2-tp0-pp0x.pt": "step-00000010",
        "epoch4-tp0-pp0x.pt": "step-00000020",
        "epoch5-tp0-pp0x.pt": "step-00000025",
    }


@pytest.mark.slow
@pytest.mark.row("C22")
def test_by_iteration_only_multiples_and_the_end_are_saved(tmp_path):
    hook = hooks.SaveCheckpointHook(interval=4, checkpoint_dir=tmp_path, save_by_iter=True)
    Trainer(engine()).fit(loader(), 2, hooks=[hook])
    assert [p.name[-2:] for p in Checkpoints(tmp_path).list()] == ["00", "04", "08", "10"]


def train(folder, epochs, *more, model=None, save=True):
    model = model or net(dropout=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    made = Engine(model, optimizer, nn.CrossEntropyLoss())
    rates = dict(type="CosineAnnealingWarmupLR", total_steps=40, warmup_steps=2)
    trainer = Trainer(made)
    data = get_dataloader(loader().dataset, shuffle=True, batch_size=4)
    torch.manual_seed(5)
    saves = [dict(type="SaveCheckpointHook", interval=1, checkpoint_dir=folder)] if save else []
    rate_hook = hooks.LRSchedulerHook(rates, by_epoch=False)
    trainer.fit(data, epochs, hooks=[hooks.LossHook(), rate_hook, *saves, *more])
    return trainer


@pytest.mark.slow
@pytest.mark.row("Z06")
def test_a_resumed_run_has_the_bits_of_one_that_was_not_stopped(tmp_path):
    whole = train(tmp_path / "whole", 4)
    train(tmp_path / "cut", 2)
    load = dict(type="LoadCheckpointHook", epoch=2, checkpoint_dir=tmp_path / "cut")
    rest = train(tmp_path / "cut", 4, load)
    assert (rest.cur_epoch, rest.cur_step) == (4, 20)
    assert same(rest.engine.model, whole.engine.model)
    again = train(tmp_path / "cut", 4)  # the same call goes on by itself: nothing is left
    assert same(again.engine.model, whole.engine.model)


@pytest.mark.slow
@pytest.mark.row("Z05")
def test_the_newest_or_the_weights_alone(tmp_path, caplog):
    first = train(tmp_path / "a", 2)
    newest = train(tmp_path / "a", 2, hooks.LoadCheckpointHook(tmp_path / "a"), save=False)
    assert newest.cur_epoch == 2
    assert same(newest.engine.model, first.engine.model)
    tune = hooks.LoadCheckpointHook(tmp_path / "a", epoch=1, finetune=True)
    assert train(tmp_path / "b", 1, tune).cur_epoch == 1
    other = nn.Sequential(net(), nn.Linear(3, 3))
    tune = hooks.LoadCheckpointHook(tmp_path / "a", finetune=True, strict=True)
    with pytest.raises(Exception, match=r"do not match: .*missing.*unexpected"):
        train(tmp_path / "c", 1, tune, model=other)
    tune = hooks.LoadCheckpointHook(tmp_path / "a", finetune=True)
    with pytest.raises(Exception, match="holds the checkpoints of another run"):
        train(tmp_path / "a", 1, tune)


@pytest.mark.slow
@pytest.mark.row("Z04")
def test_the_dict_list_of_the_document_resumes_from_its_epoch(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    listed = [
        dict(type="LogMetricByEpochHook"),
        dict(type="LogTimingByEpochHook"),
        dict(type="LogMemoryByEpochHook"),
        dict(type="AccuracyHook"),
        dict(type="LossHook"),
        dict(type="TensorboardHook", log_dir="./tfb_logs"),
        dict(type="SaveCheckpointHook", interval=5, checkpoint_dir="./ckpt"),
        dict(type="LoadCheckpointHook", epoch=20, checkpoint_dir="./ckpt"),
    ]
    copies = [dict(one) for one in listed]
    with pytest.raises(FileNotFoundError, match=r"ckpt/epoch20-tp0-pp0\.pt"):
        Trainer(engine()).fit(loader(), 21, test_dataloader=loader(), hooks=listed)
    Trainer(engine()).fit(loader(), 20, hooks=listed[:-1])
    trainer = Trainer(engine())
    trainer.fit(loader(), 21, test_dataloader=loader(), hooks=listed)
    assert (trainer.cur_epoch, trainer.cur_step) == (21, 105)
    assert listed == copies
    assert [type(hook).__name__ for hook in trainer.hooks][:1] == ["AccuracyHook"]


@pytest.mark.row("Z02")
def test_dicts_and_objects_may_be_mixed():
    trainer = Trainer(engine())
    trainer.fit(loader(), 1, hooks=[dict(type="AccuracyHook", priority=7), hooks.LossHook()])
    assert [type(hook) for hook in trainer.hooks] == [hooks.LossHook, hooks.AccuracyHook]


@pytest.mark.row("Z03")
def test_unknown_and_repeated_names_are_refused():
    with pytest.raises(KeyError, match=r"no hook 'LosHook'.*did you mean 'LossHook'"):
        Trainer(engine()).fit(loader(), 1, hooks=[dict(type="LosHook")])
    with pytest.raises(TypeError, match="is not a hook"):
        Trainer(engine()).fit(loader(), 1, hooks=[dict(kind="LossHook")])
    shelf = Registry("thing", [torch.nn])
    assert shelf.has("Linear")

    @shelf.register_module
    class Mine:
        pass

    with pytest.raises(KeyError, match="already registered"):
        shelf.register_module(Mine)
    assert shelf.register_module(Mine, force=True) is shelf.get_module("Mine") is Mine


@pytest.mark.row("C31")
def test_loggers_are_one_by_name_and_speak_on_their_ranks(tmp_path):
    logger = get_dist_logger("one")
    assert get_dist_logger("one") is logger
    assert get_dist_logger() is get_dist_logger("colossalai")
    logger.log_to_file(f"{tmp_path}/logs/", level="WARNING")
    logger.warning("here", ranks=[0])
    logger.error("elsewhere", ranks=[1])
    logger.info("not for the file")
    logger.set_level("ERROR")
    logger.warning("too quiet")
    text = (tmp_path / "logs" / "rank_0.log").read_text()
    assert text == "colossalai - one - WARNING: here\n"
    with pytest.raises(ValueError, match="level 'LOUD' is unknown"):
        logger.set_level("LOUD")


class Terminal:
    """Standard error that says it is a terminal, and keeps what it is told."""

    encoding = "utf-8"

    def __init__(self) -> None:
        self.text = ""

    def isatty(self) -> bool:
        return True

    def write(self, text: str) -> int:
        self.text += text
        return len(text)

    def flush(self) -> None:
        pass


@pytest.mark.slow
@pytest.mark.row("C32")
def test_the_bar_shows_the_metrics_of_steps_fills_and_closes(monkeypatch):
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "120")
    hook = hooks.BaseHook(1)
    hook.before_train_iter = hook.before_test_iter = lambda trainer: time.sleep(0.06)
    given = [hooks.LossHook(), hooks.LogMetricByStepHook(), hook]
    trainer = Trainer(engine())
    trainer.fit(loader(), 2, test_dataloader=loader(), hooks=given, display_progress=True)
    trainer.evaluate(loader(), hooks=given, display_progress=True)
    for words in ("epoch 2/2", "5/5", "loss ", "val"):
        assert words in terminal.text
    assert terminal.text.count("\x1b[?25l") == terminal.text.count("\x1b[?25h") > 0


# Config and launching


def test_names_of_a_config_file_are_read_through_the_context(tmp_path):
    file = tmp_path / "settings.py"
    file.write_text(
        "import math\nfrom collections import OrderedDict\n"
        "BATCH_SIZE = 2 ** 4\nNUM_EPOCHS = 3\n"
        "model = dict(type='Net', depth=dict(inner=2))\n"
        "gradient_accumulation = 2\nclip_grad_norm = 1.0\n"
        "parallel = dict(pipeline=1, tensor=dict(size=1, mode='1d'))\n"
    )
    colossalai.launch(str(file), rank=0, world_size=1, host="localhost", port=1, backend="gloo")
    assert gpc.config.NUM_EPOCHS == 3
    assert gpc.config.model.depth.inner == 2
    assert set(gpc.config) == {
        "BATCH_SIZE", "NUM_EPOCHS", "model", "gradient_accumulation", "clip_grad_norm", "parallel",
    }  # fmt: skip
    assert torch.initial_seed() == 1024
    model = net()
    made, *_ = colossalai.initialize(model, sgd(model))
    assert (made.gradient_accumulation, made.core.clip_norm) == (2, 1.0)
    with pytest.raises(AttributeError, match="did you mean 'NUM_EPOCHS'"):
        _ = gpc.config.NUM_EPOCH


@pytest.mark.row("X07")
@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (dict(gradient_handlers=[]), "'gradient_handler'"),
        (dict(clip_grad_norms=1), "'clip_grad_norm'"),
        (dict(parallel=dict(pipelines=2)), "did you mean 'pipeline'"),
        (dict(parallel=dict(tensor=dict(size=4, mode="2d"))), "mode '2d'"),
        (dict(parallel=3), "parallel is 3"),
        (dict(fp16=dict(mode=AMP_TYPE.NAIVE, hysteresis=5)), "fp16 has hysteresis=5"),
        (dict(fp16=dict(mode=AMP_TYPE.TORCH, hysteresis=2)), "fp16 has 'hysteresis'"),
        (dict(clip_grad=1.0, clip_grad_norm=1.0), "another name of clip_grad_norm"),
        (dict(fp16=dict(mode=AMP_TYPE.TORCH), zero=dict()), "cannot be combined"),
        (dict(torch_ddp=dict(static_graph=True)), "torch_ddp has 'static_graph'"),
        (dict(zero=dict(stage=2)), "zero has 'stage'"),
        (dict(fp16=dict(init_scale=2.0)), "expected a dict(mode=AMP_TYPE.TORCH"),
        (dict(fp16=dict(mode="half")), "fp16 has mode 'half'"),
    ],
)
def test_a_key_that_nobody_would_use_is_refused(wrong, message):
    with pytest.raises(config.ConfigError, match=re.escape(message)):
        gpc.load_config(wrong)


def test_the_config_becomes_a_layout():
    def layout(**keys):
        gpc.load_config(keys)
        return gpc.layout("1f1b", {"microbatches": 4})

    made = layout(parallel=dict(pipeline=dict(size=2), tensor=1))
    assert (made.pipeline, made.replicate, made.microbatches) == (2, -1, 4)
    assert layout(parallel=dict(tensor=dict(size=2, mode=None))).tensor == 2
    made = layout(zero=dict(level=2, cpu_offload=True))
    assert (made.shard, made.offload, made.reshard) == (-1, True, False)
    assert layout(torch_ddp=dict(find_unused_parameters=True)).unused
    assert gpc.get_world_size() == 1
    gpc.load_config(dict(cudnn_benchmark=True, cudnn_deterministic=True))
    assert torch.backends.cudnn.benchmark
    gpc.load_config({})
    assert not torch.backends.cudnn.benchmark
    gpc.load_config(dict(parallel=dict(pipeline=2)))
    with pytest.raises(ValueError, match="NUM_MICRO_BATCHES"):
        colossalai.initialize(net(), torch.optim.SGD)


def test_launchers_name_the_variable_they_miss(monkeypatch):
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(RuntimeError, match="no RANK"):
        colossalai.launch_from_torch({})
    with pytest.raises(RuntimeError, match="no SLURM_PROCID"):
        colossalai.launch_from_slurm({}, "localhost", 1)
    with pytest.raises(RuntimeError, match="no OMPI_COMM_WORLD_RANK"):
        colossalai.launch_from_openmpi({}, "localhost", 1)
    for name, value in (("RANK", "0"), ("LOCAL_RANK", "0"), ("SIZE", "1")):
        monkeypatch.setenv(f"OMPI_COMM_WORLD_{name}", value)
    colossalai.launch_from_openmpi(dict(A=1), "localhost", 1, seed=7)
    assert gpc.config.A == 1
    with pytest.raises(ValueError, match="'nccl' or 'gloo'"):
        colossalai.launch({}, 0, 1, "localhost", 1, backend="mpi")
    parser = colossalai.get_default_parser()
    words = "--config c.py --host h --port 1 --world_size 2 --rank 1 --local_rank 1 --backend gloo"
    assert vars(parser.parse_args(words.split())) == {
        "config": "c.py", "host": "h", "port": 1, "world_size": 2, "rank": 1, "local_rank": 1,
        "backend": "gloo",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("described", "rates"),
    [
        (dict(type="CosineAnnealingLR", eta_min=0.5), [1.0, 0.92678, 0.75, 0.57322]),
        (dict(type="CosineAnnealingWarmupLR", warmup_steps=2), [0.5, 1.0, 1.0, 0.5]),
        (dict(type="FlatAnnealingLR", pct_start=0.5), [1.0, 1.0, 1.0, 0.5]),
        (dict(type="FlatAnnealingWarmupLR", warmup_steps=1, pct_start=0.4), [1, 1, 1, 0.5]),
        (dict(type="LinearWarmupLR", warmup_steps=1), [0.5, 1, 2 / 3, 1 / 3]),
        (dict(type="MultiStepLR", milestones=[1, 3], gamma=0.5), [1, 0.5, 0.5, 0.25]),
        (dict(type="MultiStepWarmupLR", warmup_steps=2, milestones=[3]), [0.5, 1, 1, 0.1]),
        (dict(type="PolynomialLR", end_lr=0.0, power=2.0), [1, 0.5625, 0.25, 0.0625]),
        (dict(type="PolynomialWarmupLR", warmup_steps=2, end_lr=0.1), [0.5, 1, 1, 0.55]),
        (dict(type="LambdaLR", lr_lambda=lambda step: 1 / (step + 1)), [1, 1 / 2, 1 / 3, 1 / 4]),
        (dict(type="MultiplicativeLR", lr_lambda=lambda step: 0.5), [1, 0.5, 0.25, 0.125]),
        (dict(type="StepLR", gamma=0.5), [1, 0.5, 0.25, 0.125]),
        (dict(type="ExponentialLR", gamma=0.5), [1, 0.5, 0.25, 0.125]),
        (dict(type="OneCycleLR", pct_start=0.5, cycle_momentum=False), [0.04, 1.0, 0.5, 4e-6]),
    ],
)
def test_every_scheduler_takes_the_total_and_is_built_by_its_name(described, rates):
    optimizer = torch.optim.SGD(net().parameters(), lr=1.0)
    made = colossalai.builder.build_from_registry(
        described, colossalai.registry.LR_SCHEDULERS, optimizer=optimizer, total_steps=4
    )
    found = []
    for _ in range(4):
        found.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        made.step()
    assert found == pytest.approx(rates, abs=1e-4)


def test_paths_of_later_versions_are_the_same_modules():
    import stoker.dialects.colossalai.legacy as legacy
    from stoker.dialects.colossalai.legacy.engine.schedule import PipelineSchedule as Later
    from stoker.dialects.colossalai.legacy.trainer import hooks as later_hooks

    assert Later is PipelineSchedule
    assert later_hooks is hooks
    assert legacy.initialize is colossalai.initialize
    assert legacy.core.global_context is gpc
    assert dist.world_size() == 1
    module = importlib.import_module("stoker.dialects.colossalai.initialize")
    assert isinstance(module(net(), torch.optim.SGD)[0], Engine)  # as colossalai.initialize(…)
