"""Optimizers that update all parameters at once: chosen by name, never in silence."""

import inspect
import logging
from copy import deepcopy

import pytest
import torch
from torch import nn

from stoker import Engine, Trainer, hooks, seed_all
from stoker.build import build_job
from stoker.config import Config, ConfigError, L
from stoker.engine.fused import can_fuse
from support.toys import loader, net, same_bits, weights

CPU = torch.device("cpu")
FUSED = [torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW, torch.optim.Adagrad]


def wide() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 20_000), nn.Linear(20_000, 3))


def updated(kind, dtype, fused=None, **options):
    """Parameters after some updates by gradients that do not depend on them."""
    generator = torch.Generator().manual_seed(0)
    shapes = ((37, 5), (257,), (64, 33), ())
    parameters = [nn.Parameter(torch.randn(s, generator=generator).to(dtype)) for s in shapes]
    if fused is not None:
        options["fused"] = fused
    optimizer = kind(parameters, lr=0.01, **options)
    for _ in range(10):
        for parameter in parameters:
            parameter.grad = torch.randn(parameter.shape, generator=generator).to(dtype)
        optimizer.step()
    return torch.cat([parameter.detach().flatten() for parameter in parameters])


def test_those_that_can_are_those_of_torch_that_take_it():
    every = {c for c in vars(torch.optim).values() if isinstance(c, type)} - {torch.optim.Optimizer}
    takes = {kind for kind in every if "fused" in inspect.signature(kind).parameters}
    assert takes == set(FUSED)
    assert {kind for kind in every if can_fuse(kind, [torch.zeros(1)], CPU)} == takes


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("kind", FUSED)
def test_where_it_is_taken_it_differs_by_rounding_alone(kind, dtype):
    plain, fused = updated(kind, dtype, None), updated(kind, dtype, True)
    torch.testing.assert_close(fused, plain, rtol=2e-5 if dtype == torch.float32 else 1e-12, atol=0)
    assert torch.equal(plain, fused) == (kind is torch.optim.SGD)


def test_no_optimizer_has_the_same_bits_in_every_setting():
    sgd = torch.optim.SGD
    plain, fused = (updated(sgd, torch.float32, f, momentum=0.9) for f in (None, True))
    assert not torch.equal(plain, fused)


def test_half_precisions_are_left_alone():
    for dtype in (torch.bfloat16, torch.float16):
        assert not can_fuse(torch.optim.SGD, [torch.zeros(1), torch.zeros(1, dtype=dtype)], CPU)
    assert not can_fuse(torch.optim.SGD, [torch.zeros(1)], torch.device("meta"))
    assert not can_fuse(torch.optim.RMSprop, [torch.zeros(1)], CPU)


def config(optimizer, *overrides: str, model=net) -> Config:
    made = Config(
        {
            "model": L(model)(),
            "optimizer": optimizer,
            "criterion": L(nn.CrossEntropyLoss)(),
            "train_loader": L(loader)(),
            "run": {"epochs": 1, "dir": None, "progress": False, "device": "cpu"},
        }
    )
    return made.override(*overrides)


def test_auto_takes_it_where_the_optimizer_has_it():
    for optimizer in (L(torch.optim.AdamW)(fused="auto"), {"type": "AdamW", "fused": "auto"}):
        made = config(optimizer)
        assert build_job(made).trainer.engine.optimizer.param_groups[0]["fused"] is True
        assert "fused: auto" in made.text()
    other = config({"type": "RMSprop", "fused": "auto"}, "optimizer.lr=0.1")
    assert "fused" not in build_job(other).trainer.engine.optimizer.param_groups[0]


def test_auto_leaves_half_precisions_to_torch():
    def half() -> nn.Module:
        return net().bfloat16()

    made = config(L(torch.optim.AdamW)(fused="auto"), model=half)
    assert build_job(made).trainer.engine.optimizer.param_groups[0]["fused"] is None


def test_auto_is_typed_on_the_command_line():
    made = config("AdamW", "optimizer.fused=auto")
    assert build_job(made).trainer.engine.optimizer.param_groups[0]["fused"] is True
    made = config("AdamW", "optimizer.fused=false")
    assert build_job(made).trainer.engine.optimizer.param_groups[0]["fused"] is False
    with pytest.raises(ConfigError, match="expected bool or None, got maybe"):
        config("AdamW", "optimizer.fused=maybe")
    with pytest.raises(ConfigError, match="'optimizer.fused' is 'maybe'"):
        config({"type": "AdamW", "fused": "maybe"}).check()
    with pytest.raises(ConfigError, match="'optimizer.foreach' is 'auto'"):
        config({"type": "AdamW", "foreach": "auto"}).check()


def test_auto_is_for_each_of_several_optimizers():
    def pair() -> nn.Module:
        return nn.ModuleDict({"a": nn.Linear(2, 2), "b": nn.Linear(2, 2)})

    both = {"a": L(torch.optim.AdamW)(fused="auto"), "b": L(torch.optim.SGD)(lr=0.1)}
    optimizers = build_job(config(both, model=pair)).trainer.engine.optimizers
    assert [o.param_groups[0]["fused"] for o in optimizers.values()] == [True, None]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "count"),
    [({}, 1), ({"fused": True}, 0), ({"fused": False}, 0), ({"foreach": True}, 0)],
)
def test_a_run_that_would_gain_logs_once_what_to_write(options, count, caplog, monkeypatch):
    monkeypatch.setattr("stoker.core.log._hinted", set())
    model = wide()
    one = Engine(model, torch.optim.AdamW(model.parameters(), **options), nn.CrossEntropyLoss())
    with caplog.at_level(logging.INFO):
        Trainer(one, []).fit(loader(8), epochs=2)
        Trainer(one, []).fit(loader(8), epochs=2)
    lines = [r.message for r in caplog.records if "optimizer.fused=auto" in r.message]
    assert len(lines) == count
    assert not count or "AdamW(…, fused=True)" in lines[0]
    assert all(len(line) <= 100 for line in lines)


def test_a_small_model_logs_nothing(caplog):
    model = net()
    one = Engine(model, torch.optim.AdamW(model.parameters()), nn.CrossEntropyLoss())
    with caplog.at_level(logging.INFO):
        Trainer(one, []).fit(loader(8), epochs=1)
    assert "fused" not in caplog.text


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("first", [None, True])
@pytest.mark.parametrize("kind", FUSED)
def test_a_state_loads_into_the_other_implementation(kind, first, dtype):
    torch.set_default_dtype(dtype)
    try:
        one, other = (
            Engine(model := net(seed=s), kind(model.parameters(), 0.1, fused=f), nn.NLLLoss())
            for s, f in ((0, first), (1, None if first else True))
        )
        for engine in (one, other):
            engine(torch.ones(2, 4)).sum().backward()
        one.step()
        other.load_state_dict(deepcopy(one.state_dict()))
    finally:
        torch.set_default_dtype(torch.float32)
    assert same_bits(one.model, other.model)
    assert other.optimizer.param_groups[0]["fused"] is (None if first else True)
    saved, taken = (e.optimizer.state_dict()["state"] for e in (one, other))
    assert {n: state.keys() for n, state in saved.items()} == {
        n: s.keys() for n, s in taken.items()
    }
    for engine in (one, other):
        engine.zero_grad()
        engine(torch.ones(2, 4, dtype=dtype)).sum().backward()
        engine.step()
    for a, b in zip(one.model.parameters(), other.model.parameters(), strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.slow
def test_a_resumed_run_uses_the_given_implementation_and_logs_it(tmp_path, caplog):
    def fit(fused, steps, resume="auto"):
        seed_all(0)
        model = net()
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, fused=fused)
        one = Engine(model, optimizer, nn.CrossEntropyLoss())
        trainer = Trainer(one, [hooks.Checkpoint("1st")], run_dir=tmp_path / "run")
        trainer.fit(loader(), max_steps=steps, resume=resume)
        return trainer

    fit(None, 3)
    with caplog.at_level(logging.WARNING):
        again = fit(True, 6, resume="must")
    assert again.run.dir == tmp_path / "run"
    assert again.run.step == 6
    assert again.engine.optimizer.param_groups[0]["fused"] is True
    assert "fused was null and is true" in caplog.text


@pytest.mark.slow
def test_a_fused_run_that_is_resumed_ends_at_the_same_bits(tmp_path):
    def fit(folder, steps):
        seed_all(0)
        model = net(dropout=True)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, fused=True)
        one = Engine(model, optimizer, nn.CrossEntropyLoss())
        stock = [hooks.Checkpoint("1st")]
        Trainer(one, stock, run_dir=tmp_path / folder).fit(loader(shuffle=True), max_steps=steps)
        return weights(model)

    uninterrupted = fit("uninterrupted", 9)
    fit("run", 4)
    assert same_bits(uninterrupted, fit("run", 9))


SETTINGS = [
    (torch.optim.SGD, {}),
    (torch.optim.SGD, {"momentum": 0.9, "dampening": 0.1, "weight_decay": 0.01}),
    (torch.optim.SGD, {"momentum": 0.9, "nesterov": True, "maximize": True}),
    (torch.optim.Adam, {}),
    (torch.optim.Adam, {"weight_decay": 0.1, "amsgrad": True}),
    (torch.optim.AdamW, {}),
    (torch.optim.AdamW, {"betas": (0.8, 0.99), "maximize": True}),
    (torch.optim.RMSprop, {}),
    (torch.optim.RMSprop, {"centered": True, "momentum": 0.5}),
    (torch.optim.Adagrad, {"lr_decay": 0.1, "weight_decay": 0.1}),
]


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("kind", "options"), SETTINGS)
def test_foreach_gives_the_bits_of_tensor_by_tensor(kind, options, dtype):
    plain, lists = (updated(kind, dtype, foreach=f, **options) for f in (False, True))
    assert torch.equal(plain, lists)


def foreach_of(model, optimizer):
    Engine(model, optimizer)
    return [group["foreach"] for group in optimizer.param_groups]


def test_a_small_model_uses_foreach_unless_you_chose():
    model = net()
    adam = torch.optim.Adam
    assert foreach_of(model, adam(model.parameters())) == [True]
    assert foreach_of(model, adam(model.parameters(), foreach=False)) == [False]
    assert foreach_of(model, adam(model.parameters(), fused=True)) == [None]
    assert foreach_of(model, adam(model.parameters(), differentiable=True)) == [False]
    assert foreach_of(model, torch.optim.NAdam(model.parameters())) == [None]
    large = wide()
    assert foreach_of(large, adam(large.parameters())) == [None]
    half = net().bfloat16()
    assert foreach_of(half, adam(half.parameters())) == [None]


@pytest.mark.filterwarnings("ignore:Sparse invariant checks")  # torch warns about its own call
@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.Adagrad])
def test_sparse_gradients_are_updated_as_before(kind):
    def trained(foreach):
        torch.manual_seed(0)
        table = nn.Embedding(10, 3, sparse=True)
        optimizer = kind(table.parameters(), lr=0.1, foreach=foreach)
        for _ in range(3):
            optimizer.zero_grad()
            table(torch.tensor([1, 4, 4])).square().sum().backward()
            optimizer.step()
        return table.weight.detach()

    assert torch.equal(trained(True), trained(False))
