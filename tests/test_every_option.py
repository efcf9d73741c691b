"""X07: every option does something. Each is tried in two ways that must differ."""

import inspect
from dataclasses import replace

import pytest
import torch
from torch import nn

from stoker import Engine, Hook, Layout, PlainSchedule, Step, StokerError, Trainer, hooks
from support.toys import batches, loader, net, sgd


class Looks(Hook):
    """Everything a run shows, as one comparable value."""

    def __init__(self) -> None:
        self.seen: list[object] = []

    def after_step(self, run):
        self.seen.append(
            (run.step, round(float(run.loss), 7), run.samples, str(run.outputs[0].outputs.dtype))
        )

    def before_val_step(self, run):
        self.seen.append(("val", run.step, run.sizes))


def behaviour(engine=(), trainer=(), fit=()) -> object:
    model = net(dropout=True)
    optimizer = sgd(model, lr=0.5)
    engine, trainer, fit = dict(engine), dict(trainer), dict(fit)
    parts = {"model": model, "optimizer": optimizer, "criterion": nn.CrossEntropyLoss()}
    if "lr_scheduler" in engine or "lr_step" in engine:
        engine["lr_scheduler"] = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.1)
    looks = Looks()
    torch.manual_seed(0)
    try:
        run = Trainer(Engine(**{**parts, **engine}), **{"hooks": [looks], **trainer})
        run.fit(**{"train_loader": batches(22), "val_loader": batches(10), "epochs": 2, **fit})
    except (ValueError, TypeError, StokerError) as error:
        return str(error)
    compiled = type(run.engine.criterion)
    return looks.seen, type(run.step), len(list(run.hooks)), run.run.dir is None, compiled


class Zero(Step):
    def forward(self, engine, batch):
        output = super().forward(engine, batch)
        output.loss = output.loss * 2
        return output


class Doubled(PlainSchedule):
    def run(self, context):
        backward = context.backward
        super().run(replace(context, backward=lambda loss: backward(loss * 2)))


class Other(nn.Module):
    def forward(self, outputs, targets):
        return nn.functional.cross_entropy(outputs, targets) + 1


OPTIONS = {
    "engine": {
        "model": nn.Linear(4, 3),  # another model than the optimizer's: refused
        "optimizer": None,
        "criterion": Other(),
        "lr_scheduler": True,
        "lr_step": "epoch",
        "device": "cuda:7",
        "precision": "bf16",
        "clip_norm": 0.01,
        "clip_value": 0.001,
        "norm_type": 1.0,
        "layout": 0,
        "compile": "eager",
        "activation_checkpointing": "blocks",  # the model has none: refused
    },
    "trainer": {
        "engine": "no engine",
        "hooks": [hooks.Loss()],
        "step": Zero(),
        "schedule": Doubled(),
        "accumulate": 2,
        "last_window": "drop",
        "run_dir": "somewhere",
        "seed": 99,
        "grace": -1,
        "params": ["lr"],
    },
    "fit": {
        "train_loader": batches(8),
        "val_loader": None,
        "epochs": 1,
        "max_steps": 3,
        "validate_every": "2st",
        "limit_train_batches": 2,
        "limit_val_batches": 1,
        "overfit_batches": 1,
        "fast_dev_run": True,
        "resume": "must",
    },
}

BESIDE = {  # what an option needs beside it to show
    "norm_type": {"engine": {"clip_norm": 0.01}},
    "lr_step": {"engine": {"lr_scheduler": True}},
    "last_window": {"trainer": {"accumulate": 4}},
}


@pytest.mark.slow
@pytest.mark.row("X07")
@pytest.mark.parametrize(
    ("owner", "option"), [(owner, option) for owner in OPTIONS for option in OPTIONS[owner]]
)
def test_every_option_changes_what_happens(owner, option, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    if option == "layout":
        with pytest.raises(ValueError, match="needs 2 processes"):
            Engine(net(), layout=Layout(replicate=2))
        return
    beside = BESIDE.get(option, {})
    without = behaviour(**beside)
    value = {option: OPTIONS[owner][option]}
    with_it = behaviour(**{**beside, owner: {**beside.get(owner, {}), **value}})
    assert with_it != without
    assert behaviour(**beside) == without, "the comparison itself must be repeatable"


@pytest.mark.row("X07")
def test_no_option_is_left_out_of_the_table():
    for owner, function in (
        ("engine", Engine.__init__),
        ("trainer", Trainer.__init__),
        ("fit", Trainer.fit),
    ):
        assert set(OPTIONS[owner]) == set(inspect.signature(function).parameters) - {"self"}


def test_the_length_of_the_last_batch_is_what_the_table_relies_on():
    assert [len(x) for x, _ in batches(22)] == [4, 4, 4, 4, 4, 2]
    assert len(loader(22)) == 6
