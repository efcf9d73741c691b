"""Hooks, schedulers, losses, metrics, optimizers and files under the names of Colossal-AI."""

import pytest
import torch
from torch import nn

import stoker.dialects.colossalai as colossalai
from stoker import CheckpointError
from stoker.dialects.colossalai.core import global_context as gpc
from stoker.dialects.colossalai.engine import Engine
from stoker.dialects.colossalai.nn.lr_scheduler import CosineAnnealingLR, LinearWarmupLR, StepLR
from stoker.dialects.colossalai.nn.metric import Accuracy
from stoker.dialects.colossalai.nn.optimizer import (
    CPUAdam,
    FusedAdam,
    FusedSGD,
    HybridAdam,
    Lamb,
    Lars,
)
from stoker.dialects.colossalai.trainer import Trainer, hooks
from stoker.dialects.colossalai.utils import load_checkpoint, save_checkpoint
from support.toys import batches, net, samples, sgd


@pytest.fixture(autouse=True)
def no_config():
    gpc.config = type(gpc.config)()
    yield
    gpc.config = type(gpc.config)()


def engine(model=None, **options):
    model = model or net()
    return Engine(model, sgd(model), nn.CrossEntropyLoss(), **options)


def test_a_hook_takes_its_priority_by_name_and_an_old_one_its_trainer():
    assert hooks.BaseHook(priority=3).priority == 3
    assert hooks.MetricHook(priority=4).priority == 4
    assert hooks.BaseHook(7).priority == 7
    assert hooks.BaseHook().priority == 10
    trainer = Trainer(engine())
    for made in (hooks.BaseHook(trainer, 2), hooks.BaseHook(trainer=trainer, priority=2)):
        assert (made.trainer, made.priority) == (trainer, 2)
    with pytest.raises(TypeError, match="expected a priority, or a trainer and a priority"):
        hooks.BaseHook("high")


def test_a_scheduler_of_the_engine_steps_after_each_update_in_both_loops():
    model = net()
    optimizer = sgd(model)
    rates = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    made = Engine(
        model, optimizer, nn.CrossEntropyLoss(), lr_scheduler=rates, gradient_accumulation=2
    )
    for x, y in batches(16):
        made.zero_grad()
        made.backward(made.criterion(made(x), y))
        made.step()
    assert rates.get_last_lr() == [0.025]
    Trainer(made).fit(batches(16), epochs=1)
    assert rates.get_last_lr() == [0.00625]
    other = hooks.LRSchedulerHook(torch.optim.lr_scheduler.ConstantLR(optimizer), by_epoch=True)
    with pytest.raises(ValueError, match="different schedulers"):
        Trainer(made).fit(batches(16), 1, hooks=[other])


def test_schedulers_are_classes_and_cosine_knows_the_name_of_torch():
    optimizer = torch.optim.SGD(net().parameters(), lr=1.0)

    class Floor(CosineAnnealingLR):
        def get_lr(self):
            return [max(rate, 0.6) for rate in super().get_lr()]

    made = Floor(optimizer, T_max=4)
    found = []
    for _ in range(3):
        found += made.get_last_lr()
        optimizer.step()
        made.step()
    assert found == pytest.approx([1.0, 0.85355, 0.6], abs=1e-5)
    assert isinstance(made, CosineAnnealingLR)
    assert colossalai.nn.LinearWarmupLR is LinearWarmupLR
    assert isinstance(StepLR(optimizer, 4), torch.optim.lr_scheduler.StepLR)
    assert isinstance(LinearWarmupLR(optimizer, 4), torch.optim.lr_scheduler.LRScheduler)
    assert colossalai.nn.CosineAnnealingLR is CosineAnnealingLR
    for wrong in (dict(), dict(total_steps=4, T_max=4)):
        with pytest.raises(TypeError, match="needs total_steps, or T_max"):
            CosineAnnealingLR(optimizer, **wrong)
    hook = hooks.LRSchedulerHook(dict(type="CosineAnnealingLR", T_max=10), by_epoch=True)
    Trainer(engine()).fit(batches(), 1, hooks=[hook])
    assert hook.lr_scheduler.total_steps == 10


def test_the_loss_and_the_accuracy_of_nn_are_those_of_torch():
    x, y = samples()
    output = net()(x)
    expected = nn.functional.cross_entropy(output, y)
    assert torch.equal(colossalai.nn.CrossEntropyLoss()(output, y), expected)
    assert colossalai.nn.CrossEntropyLoss(reduction=False)(output, y).shape == (20,)
    assert Accuracy()(output, y) == (output.argmax(1) == y).sum()
    trainer = Trainer(engine())
    hook = hooks.AccuracyHook(accuracy_func=Accuracy())
    trainer.evaluate(batches(), hooks=[hook])
    right = (trainer.engine.model(x).argmax(1) == y).float().mean().item()
    found = trainer.states["metrics"]["test"]["Accuracy"]
    assert found.get_accumulated_value() == pytest.approx(right)
    assert colossalai.nn.LayerNorm is nn.LayerNorm
    with pytest.raises(AttributeError, match="'Linear2D'"):
        _ = colossalai.nn.Linear2D


@pytest.mark.parametrize(
    ("kind", "twin", "options"),
    [
        (FusedAdam, torch.optim.AdamW, {}),
        (CPUAdam, torch.optim.AdamW, {}),
        (HybridAdam, torch.optim.Adam, dict(adamw_mode=False)),
        (FusedSGD, torch.optim.SGD, dict(momentum=0.9)),
    ],
)
def test_fused_optimizers_update_like_those_of_torch(kind, twin, options):
    one, other = net(), net()
    same = {name: value for name, value in options.items() if name != "adamw_mode"}
    first = kind(one.parameters(), lr=0.1, weight_decay=0.1, **options)
    second = twin(other.parameters(), lr=0.1, weight_decay=0.1, **same)
    for model, optimizer in ((one, first), (other, second)):
        for x, y in batches():
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
    assert all(map(torch.equal, one.parameters(), other.parameters()))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda p: FusedAdam(p, bias_correction=False), "bias_correction"),
        (lambda p: HybridAdam(p, nvme_offload_fraction=0.5), "nvme_offload_fraction"),
        (lambda p: FusedSGD(p, wd_after_momentum=True), "wd_after_momentum"),
        (lambda p: Lars(p, eeta=2.0), "eeta must be"),
    ],
)
def test_options_of_optimizers_that_torch_has_not_are_refused(wrong, message):
    with pytest.raises(ValueError, match=message):
        wrong(net().parameters())


def parameter(*values):
    made = nn.Parameter(torch.tensor(values))
    made.grad = torch.ones_like(made)
    return made


def test_layerwise_optimizers_scale_the_rate_by_the_norm_of_the_weights():
    weight = parameter(3.0, 4.0)  # its norm is 5, that of an update of ones is sqrt(2)
    Lamb([weight], lr=0.1, betas=(0.0, 0.0), eps=0.0).step()
    change = 0.1 * 5 / 2**0.5
    torch.testing.assert_close(weight.data, torch.tensor([3.0 - change, 4.0 - change]))
    weight = parameter(3.0, 4.0)
    Lamb([weight], lr=0.1, betas=(0.0, 0.0), eps=0.0, adam=True).step()
    torch.testing.assert_close(weight.data, torch.tensor([2.9, 3.9]))
    weight, zero = parameter(3.0, 4.0), parameter(0.0, 0.0)
    made = Lars([weight, zero], lr=0.1, eeta=0.5, momentum=0.5)
    made.step()
    change = 0.1 * 0.5 * 5 / 2**0.5
    torch.testing.assert_close(weight.data, torch.tensor([3.0 - change, 4.0 - change]))
    torch.testing.assert_close(zero.data, torch.tensor([-0.1, -0.1]))  # no norm, no scaling
    zero.data.zero_()
    made.step()
    torch.testing.assert_close(zero.data, torch.tensor([-0.15, -0.15]))  # with momentum


def test_a_saved_file_restores_weights_optimizer_and_rates_and_runs_no_code(tmp_path):
    model = net()
    optimizer = torch.optim.Adam(model.parameters())
    rates = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    nn.functional.cross_entropy(model(samples()[0]), samples()[1]).backward()
    optimizer.step()
    rates.step()
    file = tmp_path / "some" / "file.pt"
    file.parent.mkdir()
    save_checkpoint(file, 3, model, optimizer, rates)
    assert set(torch.load(file, weights_only=True)) == {
        "epoch",
        "model",
        "optimizer",
        "lr_scheduler",
    }
    other = net(seed=1)
    adam = torch.optim.Adam(other.parameters())
    again = torch.optim.lr_scheduler.StepLR(adam, 1, 0.5)
    assert load_checkpoint(file, other, adam, again) == 3
    assert all(map(torch.equal, model.parameters(), other.parameters()))
    assert again.get_last_lr() == rates.get_last_lr()
    assert torch.equal(
        adam.state_dict()["state"][0]["exp_avg"], optimizer.state_dict()["state"][0]["exp_avg"]
    )
    with pytest.raises(RuntimeError, match="Missing key"):
        load_checkpoint(file, net(norm=True))
    with pytest.raises((CheckpointError, RuntimeError, OSError)):
        load_checkpoint(tmp_path / "nothing.pt", other)
