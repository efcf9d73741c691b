"""Targets that a loss ignores do not count, however a step is divided into batches and ranks."""

import logging

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from stoker import Engine, Layout, Output, Step, Trainer, hooks
from stoker.engine.target_weight import target_weight
from support.pool import pool
from support.tasks import padded


def check(found, expected):
    weights, losses = found
    right_weights, right_losses = expected
    assert weights.keys() == right_weights.keys()
    for name, weight in right_weights.items():
        torch.testing.assert_close(weights[name], weight, rtol=0, atol=1e-12)
    for name, loss in losses.items():
        assert loss == pytest.approx(right_losses[name], abs=1e-12), name


@pytest.mark.parametrize("kind", padded.CRITERIA)
@pytest.mark.parametrize("accumulate", [1, 2, 4, 16])
def test_batches_train_like_one_large_batch(kind, accumulate):
    check(padded.trained(None, kind, accumulate), padded.by_hand(kind))


@pytest.mark.parametrize("kind", ["default", "classes", "sum"])
def test_your_own_loop_counts_targets_too(kind):
    check(padded.trained(None, kind, 4, True), padded.by_hand(kind))


@pytest.mark.process
@pytest.mark.parametrize("kind", padded.CRITERIA)
def test_two_ranks_train_like_one_large_batch(kind):
    for accumulate in (1, 4):
        for found in pool().run(2, padded.trained, Layout(replicate=2), kind, accumulate):
            check(found, padded.by_hand(kind))


@pytest.mark.process
@pytest.mark.parametrize("kind", ["default", "pad 0", "partial"])
def test_ranks_with_one_label_per_sample_train_like_one_large_batch(kind):
    for layout, accumulate in ((Layout(replicate=2), 1), (Layout(replicate=2), 4)):
        for found in pool().run(2, padded.flat, layout, accumulate, kind):
            check(found, padded.flat(None, 1, kind))


@pytest.mark.process
@pytest.mark.parametrize(
    "layout",
    [
        Layout(shard=2),
        Layout(pipeline=2),
        Layout(pipeline=2, schedule="gpipe", microbatches=4),
        Layout(pipeline=2, replicate=2),
    ],
    ids=str,
)
@pytest.mark.parametrize("kind", ["default", "smooth classes"])
def test_every_layout_trains_like_one_large_batch(layout, kind):
    for own_loop in (False, True):
        found = pool().run(layout.processes, padded.trained, layout, kind, 2, own_loop)
        for one in found:
            check(one, padded.by_hand(kind))


def test_batches_of_other_lengths_weigh_by_their_targets():
    (x, y), lengths = padded.batch(4, lengths=[2, 1, 6, 5]), [2, 1, 6, 5]
    short, long = (x[:2, :2], y[:2, :2]), (x[2:], y[2:])
    engine = padded.engine_of("default")
    run = Trainer(engine, [hooks.Loss()], accumulate=2)
    (row,) = run.fit([short, long], epochs=1)
    model = padded.Tagger()
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    torch.optim.SGD(model.parameters(), lr=0.5).step()
    check((engine.weights(), row), (model.state_dict(), {**row, "train/loss": loss.item()}))
    assert run.run.samples == 4 < sum(lengths)


@pytest.mark.parametrize("accumulate", [1, 3])
def test_nothing_changes_where_no_target_is_ignored(accumulate):
    data = padded.batch(12, lengths=[padded.LENGTH] * 12)
    batches = padded.pieces(data, [2] * 6)
    engine = padded.engine_of("default")
    Trainer(engine, [hooks.Loss()], accumulate=accumulate).fit(batches, epochs=1)
    by_samples = padded.engine_of("default")
    by_samples.target_weight = None
    Trainer(by_samples, [hooks.Loss()], accumulate=accumulate).fit(batches, epochs=1)
    for name, weight in by_samples.weights().items():
        assert torch.equal(engine.weights()[name], weight)


def test_a_batch_without_targets_that_count_adds_nothing():
    x, y = padded.batch(4, lengths=[6, 3, 0, 0])
    engine = padded.engine_of("default")
    run = Trainer(engine, [hooks.Loss()], accumulate=2)
    (row,) = run.fit(padded.pieces((x, y), [2, 2]), padded.pieces((x, y), [2, 2]), epochs=1)
    model = padded.Tagger()
    nn.functional.cross_entropy(model(x), y).backward()
    torch.optim.SGD(model.parameters(), lr=0.5).step()
    check((engine.weights(), {}), (model.state_dict(), {}))
    assert row["val/loss"] == pytest.approx(nn.functional.cross_entropy(model(x), y).item())


@pytest.mark.parametrize(
    ("criterion", "counts"),
    [
        (nn.CrossEntropyLoss(), 3),
        (nn.NLLLoss(ignore_index=1), 3),
        (nn.CrossEntropyLoss(reduction="sum"), None),
        (nn.MSELoss(), None),
        (lambda outputs, targets: outputs.sum(), None),
        (None, None),
    ],
)
def test_the_weight_is_what_a_criterion_divides_by(criterion, counts):
    weigh = target_weight(criterion)
    batch = torch.zeros(4), torch.tensor([0, 1, 2, -100])
    assert (None if weigh is None else weigh.of(batch)) == counts


def test_targets_that_are_probabilities_weigh_by_samples():
    weigh = target_weight(nn.CrossEntropyLoss())
    assert weigh.of((torch.zeros(2, 3), torch.rand(2, 3))) is None
    assert weigh.of({"x": torch.zeros(2)}) is None


class OwnLoss(nn.Module):
    """Returns its own loss, as models of transformers do."""

    def __init__(self) -> None:
        super().__init__()
        self.tagger = padded.Tagger()

    def forward(self, x, labels):
        return {"loss": nn.functional.cross_entropy(self.tagger(x), labels)}


def fit_own_loss(accumulate, lengths, step=None):
    x, y = padded.batch(4, lengths=lengths)
    batches = [{"x": x[:2], "labels": y[:2]}, {"x": x[2:], "labels": y[2:]}] * 3
    model = OwnLoss()
    engine = Engine(model, torch.optim.SGD(model.parameters(), lr=0.1))
    Trainer(engine, [], step=step, accumulate=accumulate).fit(batches, epochs=1)


def weighted(engine, batch):
    return Output(engine(**batch)["loss"], weight=int((batch["labels"] != -100).sum()))


class Unweighted(Step):
    def forward(self, engine, batch):
        return engine(**batch)["loss"]


@pytest.mark.parametrize(
    ("accumulate", "lengths", "step", "warnings"),
    [
        (2, [6, 5, 4, 3], None, 1),
        (2, [6, 5, 4, 3], Unweighted(), 1),
        (2, [6, 5, 4, 3], weighted, 0),
        (1, [6, 5, 4, 3], None, 0),
        (2, [6, 6, 6, 6], None, 0),
    ],
)
def test_a_loss_of_the_models_own_is_warned_about(accumulate, lengths, step, warnings, caplog):
    with caplog.at_level(logging.WARNING):
        fit_own_loss(accumulate, lengths, step)
    found = [r.message for r in caplog.records if "some targets are -100" in r.message]
    assert len(found) == warnings
    assert all("Output(loss, weight=…)" in one for one in found)


def test_samples_with_an_ignored_label_do_not_count():
    x = torch.randn(12, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    y = torch.tensor([0, 1, 2, -100, -100, -100, 0, -100, 1, 2, 0, 1])
    made = [nn.Linear(4, 3).double() for _ in range(2)]
    made[1].load_state_dict(made[0].state_dict())
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.5) for model in made]
    run = Trainer(
        Engine(made[0], optimizers[0], nn.CrossEntropyLoss()), [hooks.Loss()], accumulate=3
    )
    data = torch.utils.data.TensorDataset(x, y)
    run.fit(DataLoader(data, batch_size=4), epochs=1)
    nn.functional.cross_entropy(made[1](x), y).backward()
    optimizers[1].step()
    torch.testing.assert_close(made[0].weight, made[1].weight, rtol=0, atol=1e-14)
