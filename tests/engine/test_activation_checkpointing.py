"""Activations that are computed again give the same gradients, bit for bit, in less memory."""

import copy

import pytest
import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks

from stoker import Engine, Layout
from stoker.engine.activation_checkpointing import checkpoint_activations
from stoker.nn import Transformer
from stoker.parallel.context import split_sequence
from support.pool import pool
from support.tasks.recomputed import gradients_in

KINDS = ["full", "selective", "blocks"]


def models():
    from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

    small = {"vocab_size": 17}
    return {
        "ours": lambda: Transformer(17, 6, width=8, layers=3, heads=2, dropout=0.2),
        "gpt2": lambda: GPT2LMHeadModel(GPT2Config(n_embd=8, n_layer=3, n_head=2, **small)),
        "llama": lambda: LlamaForCausalLM(
            LlamaConfig(
                hidden_size=8, intermediate_size=16, num_hidden_layers=3, num_attention_heads=2,
                attention_dropout=0.1, **small,
            )
        ),
    }  # fmt: skip


def gradients(model, how, **options):
    model = copy.deepcopy(model)
    engine = Engine(model, activation_checkpointing=how, **options)
    torch.manual_seed(5)
    found = engine(torch.arange(12).view(2, 6))
    loss = (found if isinstance(found, torch.Tensor) else found.logits).square().mean()
    loss.backward()
    assert torch.rand(1) >= 0
    return {n: p.grad for n, p in model.named_parameters()}, torch.rand(2), model


@pytest.mark.parametrize("how", KINDS)
@pytest.mark.parametrize("name", ["ours", "gpt2", "llama"])
def test_gradients_have_the_same_bits(name, how):
    torch.manual_seed(0)
    model = models()[name]()
    expected, drawn, plain = gradients(model, None)
    found, again, checkpointed = gradients(model, how)
    assert list(found) == list(expected)
    assert list(checkpointed.state_dict()) == list(plain.state_dict())
    assert all(torch.equal(found[name], value) for name, value in expected.items())
    assert torch.equal(drawn, again)


def saved_bytes(how):
    """Return the bytes that autograd keeps between the passes."""
    torch.manual_seed(0)
    model = Transformer(17, 32, width=16, layers=4, heads=2)
    engine = Engine(model, activation_checkpointing=how)
    own = {p.untyped_storage().data_ptr() for p in model.parameters()}
    kept = {}

    def pack(tensor):
        if tensor.untyped_storage().data_ptr() not in own:
            kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage()
        return tensor

    tokens = torch.zeros(8, 32, dtype=torch.long)
    with saved_tensors_hooks(pack, lambda tensor: tensor):
        result = engine(tokens)
    return sum(storage.nbytes() for storage in kept.values()), result


def test_less_is_kept():
    plain, blocks, full = (saved_bytes(how)[0] for how in (None, "blocks", "full"))
    assert full <= blocks < plain / 5


@pytest.mark.parametrize("how", KINDS)
def test_statistics_of_batch_norms_are_updated_once(how):
    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.ReLU())

        def forward(self, x):
            return self.layers(x)

    def train(how):
        torch.manual_seed(0)
        model = nn.Sequential(Block(), Block())
        engine = Engine(model, activation_checkpointing=how)
        for seed in range(3):
            x = torch.randn(6, 4, generator=torch.Generator().manual_seed(seed))
            engine(x).square().mean().backward()
        return {**model.state_dict(), **{n: p.grad for n, p in model.named_parameters()}}

    expected, found = train(None), train(how)
    assert all(torch.equal(found[name], value) for name, value in expected.items())


def test_a_part_that_changes_a_buffer_is_refused():
    class Counting(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("count", torch.zeros(1))
            self.linear = nn.Linear(4, 4)

        def forward(self, x):
            self.count += 1
            return self.linear(x)

    engine = Engine(nn.Sequential(Counting(), Counting()), activation_checkpointing="blocks")
    with pytest.raises(ValueError, match="Counting changes a buffer in its forward pass"):
        engine(torch.randn(2, 4))


def test_wrong_values_are_named():
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    with pytest.raises(ValueError, match="is 'block'; did you mean 'blocks'"):
        Engine(model, activation_checkpointing="block")
    with pytest.raises(ValueError, match="Sequential has no list with two blocks of one class"):
        Engine(model, activation_checkpointing="blocks")


@pytest.mark.slow
@pytest.mark.parametrize("compile_", ["aot_eager", "blocks:aot_eager"])
def test_a_compiled_model_has_the_gradients_of_a_compiled_one(compile_):
    torch.manual_seed(0)
    model = Transformer(17, 6, width=8, layers=2, heads=2).double()
    expected, _, _ = gradients(model, None, compile=compile_)
    found, _, _ = gradients(model, "blocks", compile=compile_)
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=0, atol=1e-12)


@pytest.mark.process
@pytest.mark.parametrize("layout", [Layout(replicate=2), Layout(shard=2)], ids=str)
def test_copies_and_shards_have_the_same_bits(layout):
    for expected, *found in zip(
        *[pool().run(2, gradients_in, layout, how) for how in (None, *KINDS)], strict=True
    ):
        for one in found:
            assert one == expected


def test_context_does_not_drop_it_silently():
    model = Transformer(9, 8, width=8, layers=2, heads=2)
    checkpoint_activations(model, "blocks")
    with pytest.raises(ValueError, match="as activation_checkpointing gives them, which context"):
        split_sequence(model, None)
