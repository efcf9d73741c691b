from collections import namedtuple
from dataclasses import dataclass

import pytest
import torch
from torch import nn

from stoker import Engine, Hook, Output, Step, Trainer, hooks
from stoker.hooks import Callback
from support.toys import batches, engine, net, same_bits, samples, sgd, weights


class OwnLoss(nn.Module):
    """A model that returns its own loss, in one of several forms."""

    def __init__(self, form: str) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)
        self.form = form

    def forward(self, x, y=None):
        out = self.layer(x)
        if y is None or not self.training:
            return out
        loss = nn.functional.cross_entropy(out, y)
        if self.form == "scalar":
            return loss
        if self.form == "losses":
            return {"classes": loss * 0.75, "boxes": loss * 0.25}
        if self.form == "dict":
            return {"loss": loss, "logits": out}
        return namedtuple("Reply", "loss logits")(loss, out)


@pytest.mark.slow
@pytest.mark.row("O03")
@pytest.mark.parametrize("form", ["scalar", "losses", "dict", "object"])
def test_a_model_that_returns_its_own_loss_needs_no_criterion(form):
    torch.manual_seed(0)
    model = OwnLoss(form)
    torch.manual_seed(0)
    theirs = OwnLoss(form).layer
    optimizer = sgd(theirs)
    for x, y in batches():
        optimizer.zero_grad()
        nn.functional.cross_entropy(theirs(x), y).backward()
        optimizer.step()
    trainer = Trainer(Engine(model, sgd(model)), [hooks.Loss(), hooks.Metrics("accuracy")])
    history = trainer.fit(batches(), batches(8), epochs=1)
    torch.testing.assert_close(model.layer.weight, theirs.weight)
    assert 0 <= history[-1]["val/accuracy"] <= 1
    if form == "losses":
        assert history[-1]["train/classes"] == pytest.approx(3 * history[-1]["train/boxes"])


@pytest.mark.row("O02")
def test_two_owners_are_an_error_with_their_number_and_the_list_stays():
    class Mine(Step):
        pass

    given = [Mine(), Step()]
    with pytest.raises(ValueError, match=r"got 2 steps \(Mine, Step\), expected exactly one"):
        Trainer(engine(), [], step=given)
    assert len(given) == 2


@pytest.mark.row("O02")
def test_a_step_among_the_hooks_is_named():
    with pytest.raises(TypeError, match=r"hooks\[0\] is a Step, a Step: pass it as step="):
        Trainer(engine(), [Step()])


@pytest.mark.row("O02")
def test_no_owner_means_the_default_and_one_is_used():
    class Mine(Step):
        pass

    assert type(Trainer(engine(), []).step) is Step
    assert type(Trainer(engine(), [], step=Mine()).step) is Mine


@pytest.mark.row("O04")
def test_a_forward_that_forgets_its_loss_is_named():
    class Forgetful(Step):
        def forward(self, engine, batch):
            return Output(outputs=engine(batch[0]))

    with pytest.raises(ValueError, match=r"Forgetful\.forward returned an Output without a 'loss'"):
        Trainer(engine(), [], step=Forgetful()).fit(batches(), epochs=1)


@pytest.mark.row("O04")
def test_a_validation_forward_that_returns_neither_loss_nor_outputs_is_named():
    class Forgetful(Step):
        def val_forward(self, engine, batch):
            return Output()

    with pytest.raises(ValueError, match=r"Forgetful\.val_forward .* neither 'loss' nor 'outputs'"):
        Trainer(engine(), [], step=Forgetful()).evaluate(batches())


@pytest.mark.row("O04")
def test_a_function_that_returns_no_loss_is_named():
    def my_step(engine, batch):
        return engine(batch[0])

    with pytest.raises(ValueError, match=r"my_step\.forward returned a Tensor without a loss"):
        Trainer(engine(), [], step=my_step).fit(batches(), epochs=1)


def test_a_missing_criterion_is_reported_before_anything_is_updated():
    model = net()
    before = weights(model)
    with pytest.raises(TypeError):
        # the model takes no targets
        Trainer(Engine(model, sgd(model)), []).fit(batches(), epochs=1)
    silent = Trainer(Engine(model, sgd(model)), [])
    with pytest.raises(
        ValueError, match="the engine has no criterion and Sequential returned a Tensor"
    ):
        silent.fit([x for x, _ in batches()], epochs=1)
    assert same_bits(before, model)


@pytest.mark.slow
@pytest.mark.parametrize(
    "function",
    [
        lambda e, b: e.criterion(e(b[0]), b[1]),
        lambda e, b: Output(e.criterion(e(b[0]), b[1])),
        lambda e, b: {"loss": e.criterion(e(b[0]), b[1])},
    ],
    ids=["loss", "output", "dict"],
)
def test_a_plain_function_can_be_the_step(function):
    mine, theirs = net(), net()
    Trainer(engine(mine), [], step=function).fit(batches(), epochs=1)
    Trainer(engine(theirs), []).fit(batches(), epochs=1)
    assert same_bits(mine, theirs)


def test_further_entries_of_a_dict_are_logged_as_means():
    step = lambda e, b: {"loss": e(b[0]).mean(), "twice": torch.tensor(2.0), "half": 0.5}
    history = Trainer(engine(), [hooks.Loss()], step=step).fit(batches(), epochs=1)
    assert history[-1]["train/twice"] == 2.0
    assert history[-1]["train/half"] == 0.5


@pytest.mark.row("O05")
def test_overriding_the_validation_forward_changes_validation_alone():
    class Zero(Step):
        def val_forward(self, engine, batch):
            return Output(loss=torch.zeros(()))

    mine, theirs = net(), net()
    trainer = Trainer(engine(mine), [hooks.Loss()], step=Zero())
    history = trainer.fit(batches(), batches(), epochs=1)
    Trainer(engine(theirs), []).fit(batches(), epochs=1)
    assert history[-1]["val/loss"] == 0.0
    assert history[-1]["train/loss"] > 0.1
    assert same_bits(mine, theirs)


@pytest.mark.row("O05")
def test_overriding_forward_changes_both():
    class Scaled(Step):
        def forward(self, engine, batch):
            return Output(loss=engine(batch[0]).sum() * 0 + 42.0)

    history = Trainer(engine(), [hooks.Loss()], step=Scaled()).fit(batches(), batches(), epochs=1)
    assert history[-1]["train/loss"] == history[-1]["val/loss"] == 42.0


@pytest.mark.row("O05")
def test_overriding_backward_or_update_replaces_it():
    calls = []

    class Mine(Step):
        def backward(self, engine, loss):
            calls.append("backward")
            engine.backward(loss * 2)

        def update(self, engine):
            calls.append("update")
            return engine.update()

    Trainer(engine(), [], step=Mine(), accumulate=2).fit(batches(8), epochs=1)
    assert calls == ["backward", "backward", "update"]


def test_overriding_train_replaces_everything():
    class Nothing(Step):
        def train(self, run):
            run.outputs.append(Output(loss=torch.tensor(1.0), weight=4))

    model = net()
    before = weights(model)
    history = Trainer(engine(model), [hooks.Loss()], step=Nothing()).fit(batches(), epochs=1)
    assert same_bits(before, model)
    assert history[-1]["train/loss"] == 1.0
    assert history[-1]["step"] == 5


def test_an_update_that_says_no_is_no_step():
    class Refuses(Step):
        def update(self, engine):
            return False

    trainer = Trainer(engine(), [], step=Refuses())
    trainer.fit(batches(), epochs=1)
    assert (trainer.run.step, trainer.run.samples, trainer.run.epoch) == (0, 20, 1)


def test_a_rate_set_by_hand_is_in_force_for_the_next_update():
    class Manual(Step):
        def adjust_lr(self, engine, run):
            for group in engine.optimizer.param_groups:
                group["lr"] = 1.0 / (run.step + 2)

    seen = []
    look = Callback(
        before_update=lambda run: seen.append(run.engine.optimizer.param_groups[0]["lr"])
    )
    Trainer(engine(), [look], step=Manual()).fit(batches(), epochs=1)
    assert seen == [0.1, 1 / 2, 1 / 3, 1 / 4, 1 / 5]


def test_a_rate_set_by_hand_once_per_epoch_comes_before_validation():
    order = []

    class Manual(Step):
        def adjust_lr(self, engine, run):
            order.append("adjust_lr")

    look = Callback(
        after_train_epoch=lambda r: order.append("pass over"),
        before_val=lambda r: order.append("val"),
    )
    Trainer(engine(lr_step="epoch"), [look], step=Manual()).fit(batches(), batches(4), epochs=1)
    assert order == ["adjust_lr", "pass over", "val"]


class Gan(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.generator = nn.Linear(2, 4)
        self.critic = nn.Linear(4, 1)


class GanStep(Step):
    def train(self, run):
        engine = run.engine
        model = engine.model
        real = run.batches[0][0]
        fake = model.generator(torch.randn(len(real), 2))
        engine.zero_grad()
        critic_loss = model.critic(fake.detach()).mean() - model.critic(real).mean()
        engine.backward(critic_loss)
        engine.step("critic")
        engine.zero_grad()
        generator_loss = -model.critic(fake).mean()
        engine.backward(generator_loss)
        engine.step("generator")
        scalars = {"critic": critic_loss.detach()}
        run.outputs.append(Output(loss=generator_loss, weight=len(real), scalars=scalars))


def test_a_gan_with_two_optimizers_counts_each_step_once():
    model = Gan()
    optimizers = {
        "generator": torch.optim.SGD(model.generator.parameters(), lr=0.01),
        "critic": torch.optim.SGD(model.critic.parameters(), lr=0.01),
    }
    before = weights(model)
    trainer = Trainer(Engine(model, optimizers), [hooks.Loss(), hooks.LR()], step=GanStep())
    history = trainer.fit(batches(), epochs=2)
    assert trainer.run.step == 10
    assert {"train/loss", "train/critic"} <= set(history[-1])
    assert not torch.equal(before["generator.weight"], model.generator.weight)
    assert not torch.equal(before["critic.weight"], model.critic.weight)
    assert {"lr/generator", "lr/critic"} <= set(trainer.run.events.readings())


def test_weights_given_by_the_output_count_tokens_and_not_samples():
    """Two micro-batches with 1 and 3 tokens equal one batch with 4."""

    class Tokens(Step):
        def forward(self, engine, batch):
            x, y = batch
            keep = y >= 0
            loss = nn.functional.cross_entropy(engine(x)[keep], y[keep])
            return Output(loss=loss, weight=int(keep.sum()))

    x, y = samples(8)
    x = x.double()
    y[1:4] = -100
    y[7] = -100
    mine, theirs = net().double(), net().double()
    Trainer(engine(mine), [hooks.Loss()], step=Tokens(), accumulate=2).fit(
        [(x[:4], y[:4]), (x[4:], y[4:])], epochs=1
    )
    Trainer(engine(theirs), [], step=Tokens()).fit([(x, y)], epochs=1)
    for a, b in zip(mine.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-14)


def test_a_criterion_that_sums_is_not_divided():
    x, y = samples(8)
    mine, theirs = net().double(), net().double()
    for model, data, accumulate in (
        (mine, [(x[:3].double(), y[:3]), (x[3:].double(), y[3:])], 2),
        (theirs, [(x.double(), y)], 1),
    ):
        engine_ = Engine(model, sgd(model), nn.CrossEntropyLoss(reduction="sum"))
        Trainer(engine_, [], accumulate=accumulate).fit(data, epochs=1)
    for a, b in zip(mine.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-14)


@pytest.mark.slow
@pytest.mark.row("T04")
def test_there_is_one_forward_per_training_batch_with_or_without_a_metric():
    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = net()
            self.calls = 0

        def forward(self, x):
            self.calls += 1
            return self.inner(x)

    for used in ([], [hooks.Metrics("accuracy", on="train"), hooks.Loss()]):
        model = Counting()
        Trainer(engine(model), used).fit(batches(), epochs=1)
        assert model.calls == 5


class Batches(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, a, b=None):
        return self.layer(a if b is None else a + b)


@pytest.mark.parametrize(
    "batch",
    [
        lambda x, y: (x, y),
        lambda x, y: [x, y],
        lambda x, y: ((x, x), y),
        lambda x, y: ({"a": x, "b": x}, y),
    ],
    ids=["pair", "list", "tuple of inputs", "dict of inputs"],
)
def test_batches_are_pairs_of_inputs_and_targets(batch):
    model = Batches()
    trainer = Trainer(Engine(model, sgd(model), nn.CrossEntropyLoss()), [hooks.Loss()])
    trainer.fit([batch(x, y) for x, y in batches()], epochs=1)
    assert trainer.run.samples == 20


def test_a_dict_alone_goes_to_the_model_by_name():
    class WithLoss(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 3)

        def forward(self, inputs, labels):
            return {"loss": nn.functional.cross_entropy(self.layer(inputs), labels)}

    model = WithLoss()
    trainer = Trainer(Engine(model, sgd(model)), [])
    trainer.fit([{"inputs": x, "labels": y} for x, y in batches()], epochs=1)
    assert (trainer.run.step, trainer.run.samples) == (5, 20)


def test_a_tensor_alone_is_the_input_of_a_model_with_its_own_loss():
    model = nn.Sequential(nn.Linear(4, 1), nn.Flatten(0))
    step = lambda e, b: e(b).pow(2).mean()
    trainer = Trainer(Engine(model, sgd(model)), [], step=step)
    trainer.fit([x for x, _ in batches()], epochs=1)
    assert trainer.run.samples == 20


def test_a_batch_of_three_is_refused_with_the_way_out():
    x, y = samples(4)
    with pytest.raises(
        ValueError, match=r"a batch of 3 items.*group several inputs as \(\(a, b\), y\)"
    ):
        Trainer(engine(), []).fit([(x, x, y)], epochs=1)


def test_a_batch_without_targets_is_refused_where_there_is_a_criterion():
    x, _ = samples(4)
    with pytest.raises(ValueError, match="has no targets for CrossEntropyLoss"):
        Trainer(engine(), []).fit([x], epochs=1)


def test_a_step_class_in_place_of_a_step_is_refused():
    with pytest.raises(TypeError, match="step is the class Step, expected a Step object"):
        Trainer(engine(), [], step=Step)
    with pytest.raises(TypeError, match="step is a int"):
        Trainer(engine(), [], step=3)


def test_outputs_that_are_data_classes_reach_metrics_and_predictions():
    @dataclass
    class Reply:
        logits: torch.Tensor
        extra: str = "x"

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 3)

        def forward(self, x):
            return Reply(self.layer(x))

    model = Model()
    criterion = lambda reply, y: nn.functional.cross_entropy(reply.logits, y)
    trainer = Trainer(Engine(model, sgd(model), criterion), [hooks.Metrics("accuracy")])
    assert "val/accuracy" in trainer.fit(batches(), batches(), epochs=1)[-1]
    assert trainer.predict(batches()).logits.shape == (20, 3)


def test_hooks_see_each_micro_batch_go_forward():
    seen = []

    class Looks(Hook):
        def after_forward(self, run):
            seen.append((len(run.outputs), run.outputs[-1].weight))

    Trainer(engine(), [Looks()], accumulate=3).fit(batches(18, 4), epochs=1)
    assert seen == [(1, 4), (2, 4), (3, 4), (1, 4), (2, 2)]


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_criterion_that_sums_is_known_in_every_precision(precision):
    x, y = samples(8)
    seen = []
    for data, accumulate in ([(x, y)], 1), ([(x[:3], y[:3]), (x[3:], y[3:])], 2):
        model = net()
        engine_ = Engine(
            model, sgd(model), nn.CrossEntropyLoss(reduction="sum"), precision=precision
        )
        look = Callback(
            before_update=lambda run: seen.append(run.engine.model[2].bias.grad.clone())
        )
        Trainer(engine_, [look], accumulate=accumulate).fit(data, epochs=1)
    torch.testing.assert_close(seen[0], seen[1], rtol=0.02, atol=0.02)


def test_targets_are_checked_in_every_precision():
    x, _ = samples(8)
    model = nn.Linear(4, 1)
    run = Trainer(Engine(model, sgd(model), nn.MSELoss(), precision="bf16"), [])
    with (
        pytest.warns(UserWarning, match="broadcasting"),
        pytest.raises(ValueError, match=r"criterion MSELoss got targets of shape \[8\]"),
    ):
        run.fit([(x, x.sum(1))], epochs=1)


def test_logits_of_a_dict_are_its_outputs_and_other_tensors_are_refused():
    def good(engine, batch):
        logits = engine(batch[0])
        return {"loss": engine.criterion(logits, batch[1]), "logits": logits, "targets": batch[1]}

    run = Trainer(engine(), [hooks.Metrics("accuracy", on="train")], step=good)
    assert "train/accuracy" in run.fit(batches(), epochs=1)[-1]

    def bad(engine, batch):
        return {"loss": engine(batch[0]).sum(), "hidden": batch[0]}

    with pytest.raises(ValueError, match=r"bad\.forward returned 'hidden', float32\[4, 4\]"):
        Trainer(engine(), [], step=bad).fit(batches(), epochs=1)


def test_metrics_find_logits_and_labels_in_dicts():
    class WithLoss(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 3)

        def forward(self, inputs, labels):
            logits = self.layer(inputs)
            return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}

    model = WithLoss()
    data = [{"inputs": x, "labels": y} for x, y in batches()]
    run = Trainer(Engine(model, sgd(model)), [hooks.Metrics("accuracy", on="both")])
    history = run.fit(data, data, epochs=1)
    assert 0 <= history[-1]["val/accuracy"] <= 1


def test_detection_batches_count_their_images():
    images = [torch.zeros(3, 5, 5), torch.zeros(3, 4, 4)]
    targets = [{"boxes": torch.zeros(1, 4)}, {"boxes": torch.zeros(2, 4)}]
    model = nn.Linear(1, 1)
    step = lambda e, b: e(torch.ones(1, 1)).sum() * len(b[0])
    run = Trainer(Engine(model, sgd(model)), [], step=step)
    run.fit([(images, targets)] * 3, epochs=1)
    assert run.run.samples == 6


def test_a_criterion_may_return_losses_by_name():
    def losses(outputs, targets):
        loss = nn.functional.cross_entropy(outputs, targets)
        return {"classes": 0.75 * loss, "smooth": 0.25 * loss}

    plain, named = (
        Trainer(Engine(model, sgd(model), criterion), [hooks.Loss()])
        for model, criterion in ((net(), nn.CrossEntropyLoss()), (net(), losses))
    )
    plain.fit(batches(), batches(), epochs=1)
    history = named.fit(batches(), batches(), epochs=1)
    assert same_bits(plain.engine.model, named.engine.model)
    assert {"train/classes", "train/smooth", "val/classes", "val/smooth"} <= set(history.names)
    assert history["train/classes"] == pytest.approx([0.75 * history["train/loss"][0]])


@pytest.mark.parametrize("extra", [{"loss": torch.zeros(())}, {"rows": torch.zeros(3)}])
def test_a_criterion_that_returns_more_than_losses_is_rejected(extra):
    model = net()
    criterion = lambda outputs, targets: {"classes": outputs.mean(), **extra}
    with pytest.raises(ValueError, match="expected a loss, or a dict of losses to be added"):
        Trainer(Engine(model, sgd(model), criterion), []).fit(batches(), epochs=1)
