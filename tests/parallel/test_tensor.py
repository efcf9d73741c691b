"""Layers split over 2 and 4 processes, against the same model in one."""

import functools

import pytest
import torch

from stoker.checkpoint import Checkpoints
from stoker.parallel.tensor.split import check_plan
from support.pool import pool
from support.tasks import tensor as tasks
from support.tasks.tensor import adamw, made, state, train, weights

pytestmark = pytest.mark.process

MODELS = [
    tasks.own,
    tasks.own_tied,
    tasks.own_with_dropout,
    tasks.llama,
    tasks.llama_tied_and_padded,
    tasks.gpt2,
]
each_model = pytest.mark.parametrize("build", MODELS, ids=lambda build: build.__name__)


def alone(build, steps=range(3)):
    model = made(build)
    return train(model, adamw(model), steps), weights(model)


def assert_near(found, expected):
    (scalars, tensors), (scalars_alone, tensors_alone) = found, expected
    assert torch.allclose(torch.tensor(scalars), torch.tensor(scalars_alone), rtol=0, atol=1e-10)
    assert tensors.keys() == tensors_alone.keys()
    worst = max((tensors[n] - t).abs().max().item() for n, t in tensors_alone.items())
    assert worst < 1e-10


def norms_of(expected):
    """Where each process has a part of the batch, losses differ; the norm is common."""
    scalars, tensors = expected
    return [norm for _, norm in scalars], tensors


@functools.cache
def in_two(build):
    """Train a model in two processes; several tests look at what comes out."""
    return pool().run(2, tasks.split_training, build)


@each_model
def test_two_processes_train_as_one(build):
    expected = alone(build)
    for scalars, tensors, _, split in in_two(build):
        assert len(split) > 10
        assert_near((scalars, tensors), expected)


def test_four_processes_train_as_one():
    expected = alone(tasks.own)
    for scalars, tensors, _, _ in pool().run(4, tasks.split_training, tasks.own):
        assert_near((scalars, tensors), expected)


@each_model
def test_gradients_of_unsplit_layers_are_the_same_bits_everywhere(build):
    (*_, first, split), (*_, second, _) = in_two(build)
    assert first.keys() == second.keys()
    assert len(first) >= 5  # norms, positions
    assert not first.keys() & set(split)
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_your_own_plan_does_what_the_ready_one_does():
    plan = {
        "blocks.*.attn.q": "col",
        "blocks.*.attn.k": "col",
        "blocks.*.attn.v": "col",
        "blocks.*.attn.o": "row",
    }
    found, tensors, _, split = pool().run(2, tasks.split_training, tasks.own, plan)[0]
    assert {name.split(".")[2] for name in split} == {"attn"}
    assert_near((found, tensors), alone(tasks.own))


@pytest.mark.parametrize("build", [tasks.own, tasks.llama])
def test_a_block_sums_up_twice_forward_and_twice_back(build):
    forward, backward = pool().run(2, tasks.exchanges, build)[0]
    blocks = 2 * 2
    assert forward == {"all_reduce": blocks + 1, "all_gather_into_tensor": 1}  # embed, head
    assert backward == {"all_reduce": blocks + 1}  # head


@pytest.mark.parametrize("name", ["Llama", "Mistral", "Qwen2"])
def test_the_plan_for_llama_fits_models_of_the_same_names(name):
    import transformers

    config = getattr(transformers, f"{name}Config")(
        vocab_size=21,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
    )
    words = check_plan(getattr(transformers, f"{name}ForCausalLM")(config), 2)
    assert words["model.layers.1.self_attn.o_proj"] == ("row", 1)
    assert words["lm_head"] == ("gather", 1)


def test_unsplit_tensors_are_those_of_the_first_process_in_any_form():
    first, second = pool().run(2, tasks.unsplit_state)
    assert first.keys() == second.keys() >= {"mask", "turned", "numbers", "norm.running_mean"}
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert first["numbers"].tolist() == [0.0, 0.0]


@pytest.mark.parametrize("build", [tasks.own, tasks.gpt2])
def test_a_split_model_computes_in_bfloat16_as_an_unsplit_one_does(build):
    for split, alone in pool().run(2, tasks.in_bfloat16, build):
        assert split == pytest.approx(alone, rel=0.01)


def test_a_copy_of_a_split_model_is_a_model_of_its_own():
    assert pool().run(2, tasks.copied) == [(True, True)] * 2


def test_a_split_model_can_be_compiled():
    plain, compiled = pool().run(2, tasks.compiled)[0]
    assert compiled == pytest.approx(plain, abs=1e-12)


def test_a_number_of_heads_and_packed_parts_can_be_divided():
    plan = {"attn.qkv": "col:3", "attn.heads": "divide", "attn.o": "row"}
    found, tensors, _, _ = pool().run(2, tasks.split_training, tasks.packed, plan)[0]
    assert_near((found, tensors), alone(tasks.packed))


@pytest.mark.parametrize("build", [tasks.own, tasks.own_tied, tasks.gpt2])
def test_shards_of_split_layers_train_as_one_process(build):
    expected = alone(build)
    losses = []
    for scalars, tensors in pool().run(4, tasks.shard_and_split, build):
        losses.append([loss for loss, _ in scalars])
        assert_near(([norm for _, norm in scalars], tensors), norms_of(expected))
    assert losses[0] == losses[1] != losses[2] == losses[3]


@pytest.mark.parametrize("build", [tasks.own, tasks.gpt2])
def test_copies_of_split_layers_train_as_one_process(build):
    expected = alone(build)
    for scalars, tensors in pool().run(4, tasks.copies_and_split, build):
        assert_near(([norm for _, norm in scalars], tensors), norms_of(expected))


@pytest.mark.parametrize("build", [tasks.own, tasks.gpt2])
def test_a_checkpoint_of_two_processes_resumes_in_one(build, tmp_path):
    expected = pool().run(2, tasks.saved_by_two, build, tmp_path / "two")[0]
    model = made(build, seed=7)
    optimizer = adamw(model)
    checkpoints = Checkpoints(tmp_path / "two")
    found = checkpoints.load(checkpoints.newest()).shared
    model.load_state_dict(found["model"])
    optimizer.load_state_dict(found["optimizer"])
    assert_near((train(model, optimizer, [2]), weights(model)), expected)


@pytest.mark.parametrize("build", [tasks.own, tasks.gpt2])
def test_a_checkpoint_of_one_process_resumes_in_two(build, tmp_path):
    model = made(build)
    optimizer = adamw(model)
    train(model, optimizer, range(2))
    with Checkpoints(tmp_path / "one") as checkpoints:
        checkpoints.save(2, state(model, optimizer), wait=True)
    expected = train(model, optimizer, [2]), weights(model)
    for found in pool().run(2, tasks.loaded_by_two, build, tmp_path / "one"):
        assert_near(found, expected)


@pytest.mark.parametrize("sharded", [False, True], ids=["split", "shard x split"])
def test_an_optimizer_continues_with_the_split_parameters(sharded):
    model = made(tasks.own)
    optimizer = adamw(model)
    train(model, optimizer, range(2))
    expected = train(model, optimizer, [2]), weights(model)
    for found in pool().run(4 if sharded else 2, tasks.repointed, tasks.own, sharded):
        assert_near(found, expected)


BLOCK = {f"blocks.*.attn.{name}": "col" for name in "qkv"} | {"blocks.*.attn.o": "row"}


@pytest.mark.parametrize(
    ("build", "plan", "message"),
    [
        (
            tasks.own,
            {"blocks.*.atn.q": "col"},
            "the plan names 'blocks.*.atn.q', but the model has no such layer; "
            "did you mean 'blocks.*.attn.q'",
        ),
        (
            tasks.own,
            {"blocks.*.attn.q": "column"},
            "the plan has 'column' for 'blocks.*.attn.q', which is not an operation; "
            "did you mean 'col'? (operations: col, row, gather, embed, share, divide, sum, repeat, "
            "experts)",
        ),
        (tasks.own, {"blocks.*.attn.q": "row:2"}, "the plan has 'row:2' for 'blocks.*.attn.q'"),
        (tasks.own, {"blocks.*.attn.q": "col:0"}, "is not an operation (operations: col, row"),
        (tasks.own, {"norm": "col"}, "norm is a LayerNorm, expected a Linear, a Conv1D of"),
        (tasks.own, {"head": "embed"}, "head is a Linear, expected an Embedding without max_norm"),
        (tasks.own, {"embed": "divide"}, 'embed is an Embed, expected an integer for "divide"'),
        (
            tasks.own,
            {"blocks.*.mlp.up": "col"},
            'blocks.0.mlp.up is split by "col", but no layer near it by "row": a "row" takes the',
        ),
        (
            tasks.own,
            {"blocks.*.mlp.down": "row"},
            'blocks.0.mlp.down is split by "row", but no layer near it by "col"',
        ),
        (
            tasks.own,
            BLOCK | {"blocks.0.attn.q": "row"},
            "the plan has two patterns for blocks.0.attn.q: 'blocks.0.attn.q' is the second",
        ),
        (
            tasks.three_heads,
            BLOCK,
            "blocks.0.attn.q is 3 heads wide, which does not divide evenly by 2 processes",
        ),
        (
            tasks.odd_pair,
            {"0": "col", "2": "row"},
            "0 is 5 wide, which does not divide evenly by 2 processes",
        ),
        (
            tasks.own_tied,
            {"head": "gather"},
            "embed.tokens.weight and head.weight are one parameter: the plan must split these",
        ),
        (
            tasks.packed,
            {"attn.qkv": "col:7"},
            "attn.qkv is 48 wide in 7 parts, which does not divide evenly",
        ),
        (tasks.few_rows, {"0": "gather"}, "0 has 1 rows, too few for 2 processes"),
        (
            tasks.own,
            "stokr",
            "there is no plan named 'stokr'; did you mean 'stoker'? (plans: auto, stoker)",
        ),
        (
            tasks.packed,
            "stoker",
            "there is no ready plan for Packed (the plan 'stoker' expects 'blocks.*.attn'): pass "
            "one as a mapping of layer names to operations",
        ),
        (
            tasks.odd_pair,
            "auto",
            "there is no ready plan for Sequential: pass one as a mapping of layer names to "
            "operations, as in the documentation",
        ),
        (
            tasks.qwen3,
            {f"model.layers.*.self_attn.{name}_proj": "col" for name in "qkv"}
            | {"model.layers.*.self_attn.o_proj": "row"},
            "the plan for Qwen3ForCausalLM is wrong: model.layers.0.self_attn has another gradient "
            "of q_norm.weight once it is split",
        ),
        (
            tasks.llama,
            {"model.layers.*.self_attn.q_proj": "col", "model.layers.*.self_attn.o_proj": "row"},
            "the plan for LlamaForCausalLM is wrong: model.layers.0.self_attn has another "
            "output once it is split",
        ),
    ],
)
def test_a_plan_that_does_not_fit_is_rejected_and_changes_nothing(build, plan, message):
    for error, same in pool().run(2, tasks.refusal, build, plan):
        assert message in error
        assert same
