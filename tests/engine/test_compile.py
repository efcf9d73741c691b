"""Compiling: checks before a run, log lines for recompilations, blocks that share their code."""

import copy

import pytest
import torch
from torch import nn

from stoker import Engine, Layout, Trainer
from stoker.engine.compile import backend_of, repeated_blocks
from stoker.nn import Transformer
from support.pool import pool
from support.tasks.compiled import trained
from support.toys import batches, engine, net, same_bits

pytestmark = pytest.mark.slow


@pytest.fixture
def recompilations(caplog):
    """Return the lines logged about recompilations."""
    torch._dynamo.reset()
    caplog.set_level("INFO")
    return lambda: [line for line in caplog.messages if line.startswith("recompiled")]


def test_a_batch_of_another_shape_is_logged_once_with_count_and_reason(recompilations):
    one = Trainer(engine(compile="eager"), [])
    one.fit(batches(20), epochs=1)
    assert recompilations() == [], "model and loss are two compilations, not a recompilation"
    one.fit(batches(22), epochs=3)
    assert recompilations() == [
        f"recompiled ({count} so far): tensor 'args[0]' size mismatch at index 0. "
        "expected 4, actual 2"
        for count in (1, 2)  # the model, and the loss
    ]


def test_the_other_gradient_mode_of_a_validation_is_logged_too(recompilations):
    Trainer(engine(compile="eager"), []).fit(batches(8), batches(8), epochs=2)
    assert len(recompilations()) == 2
    assert all("grad_mode" in line for line in recompilations())


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("egaer", "is not a torch.compile backend; did you mean 'eager'?"),
        ("block", "did you mean 'blocks'?"),
        ("blocks:egaer", "did you mean 'eager'?"),
        ("blocks", "Sequential has no list with two blocks of one class"),
    ],
)
def test_what_cannot_be_compiled_is_refused_when_the_engine_is_made(how, message):
    with pytest.raises(ValueError, match="compile is ") as caught:
        engine(compile=how)
    assert message in str(caught.value)


def test_a_machine_without_a_compiler_is_rejected_when_the_engine_is_made(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    with pytest.raises(ValueError, match=r"needs a C\+\+ compiler, but there is no g\+\+"):
        engine(compile=True)
    engine(compile="eager")
    (tmp_path / "g++").touch(mode=0o755)
    monkeypatch.setattr("sysconfig.get_paths", lambda: {"include": str(tmp_path)})
    with pytest.raises(ValueError, match="needs the Python headers"):
        engine(compile=True)


def test_repeated_blocks_are_the_outermost_modules_of_one_class_in_a_list():
    model = Transformer(10, 8, width=8, layers=3)
    assert repeated_blocks(model) == list(model.blocks)
    assert repeated_blocks(net()) == []
    assert repeated_blocks(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))) == []
    assert repeated_blocks(nn.ModuleDict({"a": model})) == list(model.blocks)


def test_the_backend_stands_after_blocks():
    names = [backend_of(how) for how in (True, "eager", "blocks", "blocks:eager")]
    assert names == ["inductor", "eager", "inductor", "eager"]


def test_blocks_share_one_compilation_and_change_neither_bits_nor_names():
    plain, blocks = trained(None, False), trained(None, "blocks:eager")
    assert (plain["graphs"], blocks["graphs"]) == (0, 1)
    assert plain["keys"] == blocks["keys"]
    assert same_bits(plain["weights"], blocks["weights"])


def test_blocks_are_compiled_for_real_and_a_copy_of_the_model_works():
    torch.manual_seed(0)
    model = Transformer(10, 8, width=16, layers=2)
    twin = copy.deepcopy(model)
    if " " in torch.__file__:
        with pytest.raises(ValueError, match="from a path with a space"):
            Engine(model, compile="blocks")
        return
    one = Engine(model, torch.optim.SGD(model.parameters(), lr=0.1), compile="blocks")
    tokens = torch.randint(0, 10, (2, 8))
    one.backward(one(tokens).square().mean())
    twin(tokens).square().mean().backward()
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.grad, dict(twin.named_parameters())[name].grad)
    copied = copy.deepcopy(model)
    torch.testing.assert_close(copied(tokens), one(tokens))


@pytest.mark.parametrize(
    "layout", [Layout(replicate=2), Layout(shard=2), Layout(tensor=2), Layout(pipeline=2)], ids=str
)
def test_every_layout_runs_compiled_blocks(layout):
    plain, blocks = (pool().run(2, trained, layout, how)[0] for how in (False, "blocks:eager"))
    assert blocks["graphs"] >= 1
    for name, weight in plain["weights"].items():
        torch.testing.assert_close(blocks["weights"][name], weight)
