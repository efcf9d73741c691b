import pytest
import torch
from torch import nn

from stoker import Hook, hooks
from stoker.build import build_job
from stoker.config import (
    HOOKS,
    LOSSES,
    METRICS,
    OPTIMIZERS,
    SCHEDULERS,
    Config,
    ConfigError,
    L,
    Registry,
    RegistryError,
    load,
)
from support.toys import batches, net


@pytest.fixture
def shelf():
    return Registry("shelf", ("torch.optim",))


def job(folder, *overrides):
    return build_job(load(folder / "cfg.yaml", ["run.dir=null", *overrides]))


def python_config(**parts):
    base = {
        "model": L(net)(),
        "optimizer": L(torch.optim.SGD)(lr=0.1),
        "criterion": L(nn.CrossEntropyLoss)(),
        "train_loader": L(batches)(),
        "run": {"epochs": 1, "dir": None, "progress": False, "default_hooks": False},
    }
    return Config({**base, **parts})


# Z02, Z03


@pytest.mark.row("Z02")
def test_a_list_of_dicts_and_nodes_builds_the_hooks_and_is_not_changed():
    listed = [
        {"type": "EarlyStopping", "monitor": "train/loss", "patience": 7},
        L(hooks.LR)(),
        "Timing",
        {"type": "Loss"},
        {"type": "Metrics", "_args_": ["accuracy"]},
    ]
    before = [dict(one) if isinstance(one, dict) else one for one in listed]
    made = list(build_job(python_config(hooks=listed)).trainer.hooks)
    kinds = [type(hook) for hook in made]
    assert {hooks.EarlyStopping, hooks.LR, hooks.Timing, hooks.Loss, hooks.Metrics} <= set(kinds)
    (stopping,) = [hook for hook in made if isinstance(hook, hooks.EarlyStopping)]
    assert stopping.patience == 7
    assert [dict(one) if isinstance(one, dict) else one for one in listed] == before
    assert type(listed[0]) is dict


@pytest.mark.row("Z02")
def test_hook_objects_may_stand_among_dicts():
    mine = hooks.Callback(after_step=lambda run: None)
    made = list(build_job(python_config(hooks=[{"type": "Loss"}, mine])).trainer.hooks)
    assert any(hook is mine for hook in made)


@pytest.mark.row("Z03")
def test_an_unknown_type_names_the_registry_and_near_matches(folder):
    with pytest.raises(ConfigError) as caught:
        job(folder, "+hooks={type: EarlyStoping}")
    assert "there is no hook 'EarlyStoping' in the registry; did you mean 'EarlyStopping'?" in str(
        caught.value
    )


@pytest.mark.row("Z03")
def test_an_unknown_name_is_a_key_error_with_a_clear_message(shelf):
    with pytest.raises(KeyError) as caught:
        shelf.get("Adamm")
    assert isinstance(caught.value, RegistryError)
    assert str(caught.value).startswith("there is no shelf 'Adamm' in the registry; did you mean")
    assert "'Adam'" in str(caught.value)


@pytest.mark.row("Z03")
def test_registering_a_name_twice_raises_unless_forced(shelf):
    @shelf.register
    def mine(): ...

    with pytest.raises(RegistryError, match="the shelf 'mine' is already registered"):
        shelf.register(mine)
    with pytest.raises(RegistryError, match="the shelf 'Adam' is already registered"):
        shelf.register(mine, name="Adam")

    @shelf.register(name="mine", force=True)
    def other(): ...

    assert shelf.get("mine") is other
    shelf.register(other, name="Adam", force=True)
    assert shelf.get("Adam") is other


def test_a_registry_lists_what_is_registered_and_what_its_modules_have(shelf):
    shelf.register(lambda: None, name="aaa")
    assert {"aaa", "Adam", "SGD"} <= set(shelf)
    assert "aaa" in shelf
    assert "nothing" not in shelf
    assert list(shelf) == sorted(shelf)


@pytest.mark.parametrize(
    ("registry", "name", "not_there"),
    [
        (HOOKS, "EarlyStopping", "Hook"),
        (OPTIMIZERS, "AdamW", "Optimizer"),
        (SCHEDULERS, "cosine", "LRScheduler"),
        (LOSSES, "CrossEntropyLoss", "Linear"),
        (METRICS, "Accuracy", "nothing"),
    ],
)
def test_the_registries_hold_what_they_are_for(registry, name, not_there):
    assert name in registry
    assert not_there not in registry
    assert callable(registry.get(name))


def test_a_registered_hook_is_used_by_its_short_name(monkeypatch):
    class Mine(Hook):
        pass

    monkeypatch.setattr(HOOKS, "_registered", dict(HOOKS._registered))
    HOOKS.register(Mine)
    made = build_job(python_config(hooks=["Mine"])).trainer.hooks
    assert any(isinstance(hook, Mine) for hook in made)


def test_a_hook_registered_in_a_module_that_the_yaml_names_is_known(folder, monkeypatch):
    monkeypatch.setattr(HOOKS, "_registered", dict(HOOKS._registered))
    text = (folder / "parts.py").read_text()
    (folder / "parts.py").write_text(
        text
        + "\n\nfrom stoker.config import HOOKS\n\n@HOOKS.register\nclass Own(Hook):\n    pass\n"
    )
    made = job(folder, "+hooks=Own").trainer.hooks
    assert "Own" in [type(hook).__name__ for hook in made]


def test_a_metric_within_a_hook_is_found_by_its_short_name(folder):
    one = "{type: Metrics, top2: {type: Accuracy, _args_: [2]}}"
    config = load(folder / "cfg.yaml", [f"+hooks={one}", "run.dir=null"])
    node = config.check()["hooks"][1]
    assert node["top2"].target == "stoker.metrics.Accuracy"
    assert "val/top2" in build_job(config).fit()[-1]


# T19


@pytest.mark.row("T19")
@pytest.mark.parametrize("optimizer", ["SGD", "{type: SGD}", "{_target_: torch.optim.SGD}"])
@pytest.mark.parametrize("loss", ["CrossEntropyLoss", "{type: CrossEntropyLoss}"])
def test_optimizer_and_loss_are_a_name_or_a_dict(folder, optimizer, loss):
    engine = job(folder, f"optimizer={optimizer}", f"criterion={loss}").trainer.engine
    assert type(engine.optimizers[""]) is torch.optim.SGD
    assert type(engine.given_criterion) is nn.CrossEntropyLoss


@pytest.mark.row("T19")
@pytest.mark.parametrize("scheduler", ["cosine", "{type: cosine}", "CosineAnnealingLR"])
def test_a_scheduler_is_a_name_or_a_dict(folder, scheduler):
    made = job(folder, f"lr_scheduler={scheduler}").trainer.engine.lr_schedulers[""]
    assert isinstance(made, torch.optim.lr_scheduler.LRScheduler)


RATES = {  # arguments, and the rate of the first step as a share of optimizer.lr
    "linear": ("", 1),
    "cosine": ("", 1),
    "polynomial": ("power: 2.0", 1),
    "constant": ("", 1),
    "linear+": ("warmup_steps: 4", 1 / 5),
    "cosine+": ("warmup_ratio: 0.3", 1 / 4),
    "polynomial+": ("warmup_steps: 1", 1 / 2),
    "constant+": ("warmup_steps: 9", 1 / 10),
    "StepLR": ("step_size: 1", 1),
    "MultiStepLR": ("milestones: [1, 3]", 1),
    "ExponentialLR": ("gamma: 0.5", 1),
    "CosineAnnealingLR": ("", 1),
    "CosineAnnealingWarmRestarts": ("T_0: 2", 1),
    "PolynomialLR": ("", 1),
    "ConstantLR": ("factor: 0.25", 1 / 4),
    "LinearLR": ("start_factor: 0.5", 1 / 2),
    "OneCycleLR": ("max_lr: 0.4, div_factor: 8", 1 / 2),
    "CyclicLR": ("base_lr: 0.1, max_lr: 0.4", 1),
    "LambdaLR": ("lr_lambda: {_object_: parts.halving}", 1),
    "MultiplicativeLR": ("lr_lambda: {_object_: parts.halving}", 1),
}
NOT_FROM_A_CONFIG = {"SequentialLR", "WarmupLR"}  # they take schedulers that have the optimizer


@pytest.mark.row("T19")
def test_every_scheduler_of_the_registry_is_in_the_table():
    assert {name.rstrip("+") for name in RATES} | NOT_FROM_A_CONFIG >= set(SCHEDULERS)


@pytest.mark.slow
@pytest.mark.row("T19")
@pytest.mark.parametrize("name", RATES)
def test_the_rate_of_step_1_is_the_configs_for_every_scheduler(folder, name):
    text = (folder / "parts.py").read_text()
    (folder / "parts.py").write_text(text + "\n\ndef halving(step):\n    return 0.5**step\n")
    arguments, share = RATES[name]
    given = f"lr_scheduler={{type: {name.rstrip('+')}, {arguments}}}"
    made = job(folder, given, "optimizer.lr=0.1", "optimizer.momentum=0.9")
    made.fit()
    (sizes,) = [hook for hook in made.trainer.hooks if type(hook).__name__ == "Sizes"]
    assert len(sizes.rates) == 10
    assert sizes.rates[0] == pytest.approx(0.1 * share, rel=1e-6)
    if name == "StepLR":
        assert sizes.rates == pytest.approx([0.1 * 0.1**step for step in range(10)])
    if name == "linear":
        assert sizes.rates == pytest.approx([0.1 * (1 - step / 10) for step in range(10)])


@pytest.mark.slow
@pytest.mark.row("T19")
@pytest.mark.parametrize(
    ("overrides", "updates"),
    [
        ([], 10),
        (["run.accumulate=2"], 6),
        (["run.accumulate=2", "run.last_window=drop"], 4),
        (["run.max_steps=7"], 7),
        (["run.limit_train_batches=2"], 4),
        (["run.overfit_batches=1"], 2),
        (["run.epochs=null", "run.max_steps=13"], 13),
        (["run.lr_step=epoch"], 2),
    ],
)
@pytest.mark.parametrize("name", ["linear", "CosineAnnealingLR"])
def test_the_horizon_of_a_scheduler_is_the_updates_of_the_run(folder, name, overrides, updates):
    made = job(folder, f"lr_scheduler={name}", *overrides)
    made.fit()
    scheduler = made.trainer.engine.lr_schedulers[""]
    assert made.scheduler_steps == updates
    assert scheduler.last_epoch == updates
    assert scheduler.get_last_lr()[0] == pytest.approx(0.0, abs=1e-9)


def test_a_run_of_unknown_length_asks_for_the_horizon(folder):
    text = (folder / "parts.py").read_text()
    (folder / "parts.py").write_text(
        text + "\n\nclass Endless:\n    def __iter__(self):\n        yield samples(4)\n"
    )
    overrides = ["train_loader={_target_: parts.Endless}", "lr_scheduler=cosine"]
    with pytest.raises(ConfigError, match=r"set lr_scheduler\.total_steps or run\.max_steps"):
        job(folder, *overrides)
    assert job(folder, *overrides, "run.max_steps=3").total_steps == 3


def test_several_optimizers_go_to_the_parts_of_their_names(folder):
    parts = "optimizer={first: {type: SGD, lr: 0.1}, last: {type: Adam, lr: 0.2}}"
    engine = job(folder, parts, "lr_scheduler={first: {type: cosine}}").trainer.engine
    assert type(engine.optimizers["last"]) is torch.optim.Adam
    assert engine.optimizers["first"].param_groups[0]["params"][0] is engine.model.first.weight
    assert list(engine.lr_schedulers) == ["first"]


def test_an_optimizer_for_a_part_that_is_not_there_is_refused(folder):
    with pytest.raises(ConfigError, match="no submodule 'frist'; did you mean 'first'"):
        job(folder, "optimizer={frist: {type: SGD, lr: 0.1}}")


def test_a_name_alone_is_enough_for_one_of_several_optimizers(folder):
    parts = "optimizer={first: SGD, last: {type: Adam}}"
    engine = job(folder, parts, "lr_scheduler={first: cosine}").trainer.engine
    assert type(engine.optimizers["first"]) is torch.optim.SGD
