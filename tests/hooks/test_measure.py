import math

import pytest
import torch
from torch import nn

from stoker import Engine, Hook, Trainer, hooks
from stoker.events import Cursor
from stoker.hooks import Callback
from stoker.metrics import Accuracy, Mean
from support.toys import batches, engine, loader, net, samples, sgd, trainer

LOSS = nn.CrossEntropyLoss()


@pytest.mark.row("C14")
def test_epoch_results_are_means_over_samples_when_the_last_batch_is_smaller():
    model = net()
    x, y = samples(10)
    run = Trainer(
        Engine(model, sgd(model, lr=0.0), LOSS),
        [hooks.Loss(), hooks.Metrics("accuracy", on="both")],
    )
    history = run.fit(loader(10, 4), loader(10, 4), epochs=1)
    logits = model(x).detach()
    assert history[-1]["train/loss"] == pytest.approx(float(LOSS(logits, y)), rel=1e-6)
    assert history[-1]["val/loss"] == pytest.approx(float(LOSS(logits, y)), rel=1e-6)
    right = int((logits.argmax(1) == y).sum())
    assert history[-1]["train/accuracy"] == history[-1]["val/accuracy"] == right / 10


@pytest.mark.row("T02")
def test_the_loss_of_a_validation_is_that_of_its_batches_alone():
    losses = iter([8.0, 6.0, 1.0, 3.0])
    step = lambda e, b: e(b[0]).sum() * 0 + next(losses)
    run = Trainer(engine(), [hooks.Loss()], step=step)
    history = run.fit(batches(8), batches(8), epochs=1)
    assert history[-1]["train/loss"] == 7.0
    assert history[-1]["val/loss"] == 2.0


@pytest.mark.row("T03")
def test_validation_runs_in_evaluation_mode():
    model = net(dropout=True, norm=True)
    run = trainer(hooks.Loss(), model=model)
    modes, buffers = [], []

    class Looks(Hook):
        def before_val_step(self, run):
            modes.append(any(module.training for module in model.modules()))

        def before_val(self, run):
            buffers.append(model[1].running_mean.clone())

        def after_val(self, run):
            buffers.append(model[1].running_mean.clone())

    run = trainer(hooks.Loss(), Looks(), model=model)
    run.fit(batches(), batches(8), epochs=1)
    assert modes == [False, False]
    assert torch.equal(*buffers)
    assert run.evaluate(batches()) == run.evaluate(batches())


@pytest.mark.row("C13")
def test_reading_a_metric_twice_gives_the_same_number():
    seen = []
    metric = Accuracy()
    look = lambda run: seen.append(metric.compute())
    readers = [
        Callback(name="first", priority=60, after_val=look),
        Callback(name="second", priority=70, after_val=look),
    ]
    trainer(hooks.Metrics(mine=metric), *readers).evaluate(batches())
    assert len(seen) == 2
    assert seen[0] == seen[1]
    mean = Mean()
    mean.update(torch.tensor(3.0), 2)
    mean.update(6.0, 1)
    assert mean.compute() == mean.compute() == 4.0


@pytest.mark.row("C16")
def test_the_rate_shown_for_an_update_is_the_one_it_was_made_with():
    model = net()
    optimizer = sgd(model, lr=0.8)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    used, shown = [], []

    class Looks(Hook):
        priority = 95

        def before_update(self, run):
            used.append(optimizer.param_groups[0]["lr"])

        def after_step(self, run):
            shown.append(run.events.readings()["lr"])

    run = Trainer(Engine(model, optimizer, LOSS, lr_scheduler=scheduler), [hooks.LR(), Looks()])
    run.fit(batches(), epochs=1)
    assert used == shown == [0.8, 0.4, 0.2, 0.1, 0.05]


def test_the_rate_of_the_largest_group_is_shown():
    model = net()
    groups = [{"params": [model[0].bias], "lr": 1.0}, {"params": [model[0].weight], "lr": 0.25}]
    run = Trainer(Engine(model, torch.optim.SGD(groups), LOSS), [hooks.LR()])
    run.fit(batches(4), epochs=1)
    assert run.run.events.readings()["lr"] == 0.25


def test_a_rate_that_a_hook_sets_before_a_step_is_the_one_shown():
    def warm(run):
        run.engine.optimizer.param_groups[0]["lr"] = 0.01 * (run.step + 1)

    run = trainer(hooks.LR(), Callback(before_step=warm))
    run.fit(batches(12), epochs=1)
    assert run.run.events.readings()["lr"] == pytest.approx(0.03)


def test_the_stream_shows_the_mean_of_the_last_steps_and_the_epoch_all_of_them():
    losses = iter([1.0, 2.0, 3.0, 4.0, 5.0])
    run = Trainer(
        engine(), [hooks.Loss(window=2)], step=lambda e, b: e(b[0]).sum() * 0 + next(losses)
    )
    history = run.fit(batches(), epochs=1)
    assert run.run.events.readings()["train/loss"] == 4.5
    assert history[-1]["train/loss"] == 3.0


def test_metrics_on_training_data_cover_the_epoch_so_far():
    seen = []
    look = Callback(
        priority=95, after_step=lambda run: seen.append(run.events.readings()["train/accuracy"])
    )
    model = net()
    x, y = samples(8)
    right = (model(x).argmax(1) == y).float()
    run = Trainer(
        Engine(model, sgd(model, lr=0.0), LOSS), [hooks.Metrics("accuracy", on="train"), look]
    )
    run.fit(batches(8), epochs=1)
    assert seen == [pytest.approx(float(right[:4].mean())), pytest.approx(float(right.mean()))]


def test_metrics_read_what_they_are_set_to_read():
    class Largest:
        def reset(self):
            self.value = -math.inf

        def update(self, outputs, targets):
            self.value = max(self.value, float(outputs.max()))

        def compute(self):
            return self.value

    read = lambda output: (output.outputs * 0 + 5.0, output.targets)
    assert trainer(hooks.Metrics(Largest(), read=read)).evaluate(batches()) == {"val/largest": 5.0}


def test_torchmetrics_are_metrics():
    from stoker import metrics

    f1 = metrics.get("MulticlassF1Score", num_classes=3, average="micro")
    results = trainer(hooks.Metrics("accuracy", f1=f1, on="both")).fit(
        batches(), batches(), epochs=1
    )
    assert results[-1]["val/f1"] == pytest.approx(results[-1]["val/accuracy"])
    assert results[-1]["train/f1"] == pytest.approx(results[-1]["train/accuracy"])


def test_a_metric_with_several_values_gives_a_name_to_each():
    from torchmetrics import MetricCollection
    from torchmetrics.classification import MulticlassAccuracy

    per_class = MulticlassAccuracy(3, average=None)
    both = MetricCollection({"a": MulticlassAccuracy(3), "b": MulticlassAccuracy(3, top_k=2)})
    results = trainer(hooks.Metrics(per=per_class, both=both)).evaluate(batches())
    assert set(results) == {
        "val/per/0",
        "val/per/1",
        "val/per/2",
        "val/both/a",
        "val/both/b",
    }


@pytest.mark.parametrize(
    ("make", "error", "text"),
    [
        (hooks.Metrics, ValueError, "at least one metric"),
        (lambda: hooks.Metrics(Accuracy), TypeError, "the class Accuracy is not a metric"),
        (lambda: hooks.Metrics(3), TypeError, "3 is not a metric"),
        (lambda: hooks.Metrics("accuracy", on="test"), ValueError, "'val', 'train' or 'both'"),
        (lambda: hooks.Metrics("acuracy"), ValueError, "did you mean 'accuracy'"),
    ],
)
def test_wrong_metrics_are_refused(make, error, text):
    with pytest.raises(error, match=text):
        make()


@pytest.mark.parametrize("clip", [None, 0.01])
def test_the_gradient_norm_is_that_before_clipping(clip):
    seen = []

    def look(run):
        grads = [p.grad.flatten() for p in run.engine.model.parameters()]
        seen.append(float(torch.cat(grads).norm()))

    run = Trainer(engine(clip_norm=clip), [hooks.GradNorm(), Callback(before_update=look)])
    run.fit(batches(4), epochs=1)
    assert run.run.events.readings()["grad_norm"] == pytest.approx(seen[0], rel=1e-5)


def test_the_state_of_loss_and_metrics_resumes_to_the_same_bits():
    """Half an epoch, saved and taken up, gives the numbers of a whole one."""

    def fresh():
        return [hooks.Loss(window=3), hooks.Metrics("accuracy", on="train")]

    whole = fresh()
    run = Trainer(engine(), whole)
    run.fit(batches(), epochs=1)

    half = fresh()
    stop = Callback(after_step=lambda run: run.stop("half") if run.step == 2 else None)
    first = Trainer(engine(), [*half, stop])
    first.fit(batches(), epochs=1)
    states = [hook.state_dict() for hook in half]
    second_hooks = fresh()
    second = Trainer(first.engine, second_hooks)

    class TakesUp(Hook):
        priority = 20

        def before_epoch(self, run):
            for hook, state in zip(second_hooks, states, strict=True):
                hook.load_state_dict(state)

    second = Trainer(first.engine, [*second_hooks, TakesUp()])
    history = second.fit(batches()[2:], epochs=1)
    assert history[-1]["train/loss"] == run.history[-1]["train/loss"]
    assert history[-1]["train/accuracy"] == run.history[-1]["train/accuracy"]
    assert [h.state_dict() for h in second_hooks] == [h.state_dict() for h in whole]


READS = ("item", "tolist", "numpy", "cpu", "__float__", "__int__", "__bool__", "__index__")


@pytest.mark.slow
def test_nothing_is_read_back_from_the_device_between_two_writes(monkeypatch):
    """R6: with the measuring hooks on, no tensor becomes a number in an ordinary step."""
    reads: list[str] = []

    def watch(run):
        if run.step == 1:  # the first step of a fit is checked, and only that one
            for name in READS:
                real = getattr(torch.Tensor, name)
                spy = lambda self, *a, name=name, real=real: (reads.append(name), real(self, *a))[1]
                monkeypatch.setattr(torch.Tensor, name, spy)

    used = [hooks.Loss(), hooks.LR(), hooks.Timing(), hooks.GradNorm(), hooks.Throughput()]
    used += [hooks.Metrics(Accuracy(), seen=Accuracy(ignore_index=1), on="train"), hooks.EMA()]
    run = trainer(
        *used,
        Callback(priority=100, after_step=watch),
        Callback(name="end", priority=0, after_train_epoch=lambda run: monkeypatch.undo()),
    )
    run.fit(batches(40) * 60, epochs=1)  # 600 steps: sums are folded twice on the way
    assert run.run.step == 600
    assert reads == []
    float(torch.ones(()))
    assert reads == [], "the spies are gone"


@pytest.mark.slow
def test_memory_stays_bounded_however_long_the_run():
    run = trainer(hooks.Loss(), hooks.LR(), hooks.Timing(), hooks.GradNorm())
    run.fit(batches(400) * 10, epochs=1)
    loss = next(iter(run.hooks))
    assert len(loss._train.loss._values) <= 256
    assert len(loss._unread) == 50
    assert len(run.run.events.history("grad_norm")) == 20
    assert run.run.events.unread(Cursor())[-1].step == 1000


def test_the_window_of_the_loss_counts_steps_and_not_micro_batches():
    losses = iter([1.0, 1.0, 2.0, 2.0, 3.0, 3.0])
    step = lambda e, b: e(b[0]).sum() * 0 + next(losses)
    run = Trainer(engine(), [hooks.Loss(window=2)], step=step, accumulate=2)
    run.fit(batches(24), epochs=1)
    assert run.run.events.readings()["train/loss"] == 2.5


def test_a_nan_that_is_skipped_spoils_no_mean():
    data = batches(12)
    data[1] = (data[1][0] * math.nan, data[1][1])
    run = trainer(hooks.NaNGuard("skip"), hooks.Loss(), hooks.Metrics("accuracy", on="train"))
    history = run.fit(data, epochs=1)
    assert math.isfinite(history[-1]["train/loss"])
    assert run.run.step == 2


def test_an_output_added_by_a_complete_step_weighs_its_samples():
    from stoker import Output, Step

    class Whole(Step):
        def train(self, run):
            run.add_output(Output(loss=torch.tensor(float(len(run.batches[0][0])))))

    history = Trainer(engine(), [hooks.Loss()], step=Whole()).fit(batches(6, 4), epochs=1)
    assert history[-1]["train/loss"] == pytest.approx((4 * 4 + 2 * 2) / 6)


def test_gradients_that_no_optimizer_uses_are_not_looked_at():
    model = net()
    data = batches(20)
    data[1] = (data[1][0] * math.nan, data[1][1])
    run = Trainer(Engine(model, sgd(model[2]), LOSS), [hooks.NaNGuard("skip"), hooks.GradNorm()])
    run.fit(data, epochs=2)
    assert run.run.step == 8
    assert run.run.events.history("grad_norm")[-1] < 2


@pytest.mark.parametrize("size", [1, 4, 10])
def test_a_criterion_that_sums_is_shown_as_a_mean_over_samples(size):
    model = net()
    x, y = samples(10)
    engine_ = Engine(model, sgd(model, lr=0.0), nn.CrossEntropyLoss(reduction="sum"))
    history = Trainer(engine_, [hooks.Loss()]).fit(loader(10, size), loader(10, size), epochs=1)
    expected = float(LOSS(model(x).detach(), y))
    assert history[-1]["train/loss"] == pytest.approx(expected, rel=1e-5)
    assert history[-1]["val/loss"] == pytest.approx(expected, rel=1e-5)


def test_a_batch_that_weighs_nothing_spoils_no_mean():
    from stoker import Output

    weights = iter([0, 4, 4])

    def step(e, b):
        weight = next(weights)
        loss = e(b[0]).sum() * 0 + (1.0 if weight else math.nan)
        return Output(loss=loss, weight=torch.tensor(weight))

    results = Trainer(engine(), [hooks.Loss()], step=step).evaluate(batches(12))
    assert results == {"val/loss": 1.0}


def test_a_prediction_for_one_sample_is_no_loss():
    class Judge(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 1)

        def forward(self, x, y):
            out = self.layer(x)
            return out.mean() if self.training else out

    model = Judge()
    run = Trainer(Engine(model, sgd(model)), [hooks.Loss()])
    assert run.evaluate([(torch.zeros(1, 4), torch.zeros(1))]) == {}


def test_probabilities_need_their_threshold():
    model = nn.Sequential(nn.Linear(4, 1), nn.Sigmoid(), nn.Flatten(0))
    data = [(x, (x.sum(1) > 0).float()) for x, _ in batches()]
    make = lambda metric: Trainer(Engine(model, sgd(model), nn.BCELoss()), [hooks.Metrics(metric)])
    with pytest.raises(ValueError, match=r"use Accuracy\(threshold=0.5\)"):
        make(Accuracy()).evaluate(data)
    x = torch.cat([x for x, _ in data])
    expected = float(((model(x) > 0.5) == (x.sum(1) > 0)).float().mean())
    assert make(Accuracy(threshold=0.5)).evaluate(data)["val/accuracy"] == pytest.approx(expected)


def test_collections_on_training_data_and_repeated_names():
    from torchmetrics import MetricCollection
    from torchmetrics.classification import MulticlassAccuracy

    both = MetricCollection({"a": MulticlassAccuracy(3)})
    run = trainer(hooks.Metrics(both=both, on="both"))
    assert "train/both/a" in run.fit(batches(), epochs=1)[-1]
    run.run.events.readings()
    with pytest.raises(ValueError, match="two metrics are named 'accuracy'"):
        hooks.Metrics(Accuracy(1), Accuracy(2))


def test_torchmetrics_validate_the_first_batch_of_each_pass_alone():
    from torchmetrics import MetricCollection
    from torchmetrics.classification import MulticlassAccuracy

    one = MulticlassAccuracy(3)
    both = MetricCollection({"a": one, "b": MulticlassAccuracy(3, validate_args=False)})
    seen = []
    look = hooks.Callback(after_val_step=lambda run: seen.append(one.validate_args))
    run = trainer(hooks.Metrics(both=both), look)
    run.fit(batches(12), {"x": batches(8), "y": batches(8)}, epochs=1)
    assert seen == [False] * 4
    assert one.validate_args
    assert not both["b"].validate_args

    with pytest.raises(
        ValueError, match=r"`preds.shape\[1\]` should be equal to number of classes"
    ):
        trainer(hooks.Metrics(MulticlassAccuracy(5))).evaluate(batches(8))


@pytest.mark.slow
def test_metrics_of_torchmetrics_are_the_same_bits_without_validation():
    from torchmetrics import classification

    from stoker.metrics.metric import MetricCollection

    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(12, 16, 4, generator=generator)
    classes = torch.randint(0, 4, (12, 16), generator=generator)
    tried = 0
    for name, kind in vars(classification).items():
        if not isinstance(kind, type) or not name.startswith(("Binary", "Multiclass")):
            continue
        binary = name.startswith("Binary")
        try:
            checked, fast = (kind() if binary else kind(num_classes=4) for _ in range(2))
        except (TypeError, ValueError):  # it wants more arguments
            continue
        collection = MetricCollection({"fast": fast})
        for some, right in zip(scores, classes, strict=True):
            batch = (some[:, 0].sigmoid(), right % 2) if binary else (some, right)
            checked.update(*batch)
            collection.update_all(*batch)
        assert fast.validate_args is False
        assert str(fast.compute()) == str(checked.compute()), name
        tried += 1
    assert tried > 30
