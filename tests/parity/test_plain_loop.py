"""R3: weights are bit-equal to the loop a person would write."""

import random

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from stoker import Engine, Trainer, hooks, seed_all
from stoker.metrics import Accuracy
from support.toys import batches, engine, loader, net, plain_loop, same_bits, samples, sgd, weights


@pytest.mark.row("C01")
def test_own_loop_with_an_engine_equals_the_plain_loop():
    mine, theirs = net(dropout=True), net(dropout=True)
    data = batches(80)
    torch.manual_seed(1)
    plain_loop(theirs, sgd(theirs), data)
    torch.manual_seed(1)
    engine_ = Engine(mine, sgd(mine), nn.CrossEntropyLoss())
    for x, y in data:
        engine_.zero_grad()
        loss = engine_.criterion(engine_(x), y)
        engine_.backward(loss)
        engine_.step()
    assert len(data) == 20
    assert same_bits(mine, theirs)


@pytest.mark.parametrize("optimizer", ["SGD", "AdamW", "RMSprop", "Adagrad"])
def test_a_fit_equals_the_plain_loop_with_shuffling_and_dropout(optimizer):
    mine, theirs = net(dropout=True, norm=True), net(dropout=True, norm=True)
    make = getattr(torch.optim, optimizer)
    seed_all(3)
    plain_loop(theirs, make(theirs.parameters(), lr=0.01), loader(22, shuffle=True), epochs=3)
    after_plain = torch.get_rng_state()
    trainer = Trainer(Engine(mine, make(mine.parameters(), lr=0.01), nn.CrossEntropyLoss()), seed=3)
    trainer.fit(loader(22, shuffle=True), epochs=3)
    assert same_bits(mine, theirs)
    assert torch.equal(torch.get_rng_state(), after_plain)


@pytest.mark.process
def test_workers_give_the_same_weights():
    mine, theirs = net(), net()
    seed_all(3)
    plain_loop(theirs, sgd(theirs), loader(16, shuffle=True, num_workers=1), epochs=2)
    Trainer(engine(mine), [], seed=3).fit(loader(16, shuffle=True, num_workers=1), epochs=2)
    assert same_bits(mine, theirs)


def test_clipping_equals_clipping_by_hand():
    mine, theirs = net(), net()
    optimizer = sgd(theirs, lr=1.0)
    clip = lambda: nn.utils.clip_grad_norm_(theirs.parameters(), 0.05)
    plain_loop(theirs, optimizer, batches(), epochs=2, before_update=clip)
    trainer = Trainer(Engine(mine, sgd(mine, lr=1.0), nn.CrossEntropyLoss(), clip_norm=0.05), [])
    trainer.fit(batches(), epochs=2)
    assert same_bits(mine, theirs)


def test_a_schedule_by_step_equals_stepping_it_by_hand():
    mine, theirs = net(), net()
    optimizer, mine_optimizer = sgd(theirs), sgd(mine)
    make = lambda o: torch.optim.lr_scheduler.StepLR(o, 3, 0.5)
    plain_loop(theirs, optimizer, batches(), epochs=2, scheduler=make(optimizer))
    engine_ = Engine(mine, mine_optimizer, nn.CrossEntropyLoss(), lr_scheduler=make(mine_optimizer))
    Trainer(engine_, []).fit(batches(), epochs=2)
    assert same_bits(mine, theirs)


@pytest.mark.parametrize("accumulate", [2, 3, 4])
def test_accumulation_equals_dividing_the_loss_by_hand(accumulate):
    mine, theirs = net(), net()
    data = batches(48)
    optimizer, criterion = sgd(theirs), nn.CrossEntropyLoss()
    for index, (x, y) in enumerate(data):
        (criterion(theirs(x), y) / accumulate).backward()
        if (index + 1) % accumulate == 0:
            optimizer.step()
            optimizer.zero_grad()
    Trainer(engine(mine), [], accumulate=accumulate).fit(data, epochs=1)
    assert len(data) % accumulate == 0
    assert same_bits(mine, theirs)


def test_accumulation_equals_one_big_batch_whatever_the_pieces_hold():
    """Short batches and the last short window count by what they hold."""
    pieces = [5, 1, 3, 4, 2, 7]
    x, y = samples(sum(pieces))
    small = list(zip(x.split(pieces), y.split(pieces), strict=True))
    big = [(x[:13], y[:13]), (x[13:], y[13:])]
    mine, theirs = net().double(), net().double()
    to_double = lambda data: [(a.double(), b) for a, b in data]
    plain_loop(theirs, sgd(theirs), to_double(big))
    Trainer(engine(mine), [], accumulate=4).fit(to_double(small), epochs=1)
    for mine_weight, their_weight in zip(mine.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(mine_weight, their_weight, rtol=1e-12, atol=1e-14)


@pytest.mark.row("X05")
def test_evaluation_and_logging_change_nothing(tmp_path):
    """R2: with and without looking, the same weights and the same random numbers."""

    def train(*, looking: bool):
        model = net(dropout=True, norm=True)
        noisy = DataLoader(TensorDataset(*samples(12)), batch_size=4, shuffle=True)
        used = [
            *hooks.default(log_every=2),
            hooks.Metrics("accuracy", top2=Accuracy(2), on="both"),
            hooks.GradNorm(),
            hooks.Memory(),
            hooks.Throughput(),
            hooks.EMA(0.9),
        ]
        trainer = Trainer(
            engine(model),
            used if looking else [],
            run_dir=tmp_path / "run" if looking else None,
            seed=5,
        )
        val = noisy if looking else None
        trainer.fit(loader(20, shuffle=True), val, epochs=3, validate_every=2 if looking else None)
        if looking:
            trainer.evaluate(noisy)
            trainer.predict(noisy)
        return weights(model), torch.get_rng_state(), np.random.rand(), random.random()

    blind, looked = train(looking=False), train(looking=True)
    assert same_bits(blind[0], looked[0])
    assert torch.equal(blind[1], looked[1])
    assert blind[2:] == looked[2:]
    assert (tmp_path / "run" / "metrics.jsonl").exists()


def test_the_same_seed_twice_gives_the_same_bits():
    models = [net(dropout=True), net(dropout=True)]
    for model in models:
        Trainer(engine(model), [], seed=11).fit(loader(20, shuffle=True), epochs=2)
    assert same_bits(*models)


def test_about_five_frames_lie_between_fit_and_backward(monkeypatch):
    import traceback

    seen: list[list[str]] = []
    backward = torch.Tensor.backward

    def spy(self, *args, **kwargs):
        frames = traceback.extract_stack()[:-1]
        start = next(i for i, frame in enumerate(frames) if frame.name == "fit")
        seen.append([frame.name for frame in frames[start:]])
        return backward(self, *args, **kwargs)

    monkeypatch.setattr(torch.Tensor, "backward", spy)
    Trainer(engine(), []).fit(batches(4), epochs=1)
    assert seen[0] == ["fit", "_train_epoch", "train", "run", "backward"]
