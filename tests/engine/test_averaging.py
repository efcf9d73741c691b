"""Optimizers that average weights: training has its own weights, everything else the average."""

import pytest
import schedulefree
import torch
from torch import nn

from stoker import Engine, Trainer, hooks
from stoker.checkpoint import Checkpoints
from support.tasks.layouts import Break

LOSS = nn.MSELoss()


def data(count=8):
    made = torch.Generator().manual_seed(1)
    return [(torch.randn(4, 3, generator=made), torch.randn(4, 2, generator=made))] * count


def model_and_optimizer(kind="adamw"):
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    if kind == "wrapper":
        inner = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.5)
        return model, schedulefree.ScheduleFreeWrapper(inner, momentum=0.8)
    return model, schedulefree.AdamWScheduleFree(model.parameters(), lr=0.1)


def plain(kind):
    """Return the weights of training and of evaluation after a loop without Stoker."""
    model, optimizer = model_and_optimizer(kind)
    optimizer.train()
    for x, y in data():
        optimizer.zero_grad()
        LOSS(model(x), y).backward()
        optimizer.step()
    trained = model.weight.detach().clone()
    optimizer.eval()
    return trained, model.weight.detach().clone()


@pytest.mark.parametrize("kind", ["adamw", "wrapper"])
def test_training_and_evaluation_have_the_weights_of_the_plain_loop(kind):
    model, optimizer = model_and_optimizer(kind)
    seen = []

    class Look(hooks.Hook):
        def before_val(self, run):
            seen.append(model.weight.detach().clone())

    engine = Engine(model, optimizer, LOSS)
    trainer = Trainer(engine, [Look()])
    trainer.fit(data(), data(2), epochs=1, validate_every="2st")
    trained, averaged = plain(kind)
    assert torch.equal(model.weight, trained)
    assert torch.equal(seen[-1], averaged)
    assert torch.equal(engine.weights()["weight"], averaged)
    trainer.evaluate(data(2))
    assert torch.equal(seen[-1], averaged)
    assert torch.equal(model.weight, trained)


@pytest.mark.parametrize("kind", ["adamw", "wrapper"])
def test_a_checkpoint_has_the_average_and_resumes_at_the_same_bits(kind, tmp_path):
    def train(break_at=None):
        model, optimizer = model_and_optimizer(kind)
        stop = [Break(break_at)] if break_at is not None else []
        trainer = Trainer(
            Engine(model, optimizer, LOSS), [hooks.Checkpoint("1st"), *stop], run_dir=tmp_path
        )
        trainer.fit(data(), data(2), epochs=1, validate_every="3st")
        return model.weight.detach()

    with pytest.raises(KeyboardInterrupt):
        train(break_at=5)
    trained, averaged = plain(kind)
    assert torch.equal(train(), trained)
    newest = Checkpoints(tmp_path / "checkpoints").list()[-1]
    other, _ = model_and_optimizer()
    from stoker.resume.weights import load_weights

    load_weights(other, newest)
    assert torch.equal(other.weight, averaged)


def test_the_best_weights_are_averages_and_are_evaluated_as_they_are():
    model, optimizer = model_and_optimizer()
    scores, seen = iter([3.0, 1.0, 2.0]), []

    class Score(hooks.Hook):
        def after_val(self, run):
            seen.append(model.weight.detach().clone())
            if run.task == "fit":
                run.record("val/score", next(scores))

    best = hooks.KeepBest("val/score", mode="min")
    trainer = Trainer(Engine(model, optimizer, LOSS), [Score(), best])
    trainer.fit(data(3), data(1), epochs=1, validate_every="1st")
    trainer.evaluate(data(1))
    assert torch.equal(seen[-1], seen[1])
    assert torch.equal(model.weight, seen[1])
