"""Colossal-AI's `PipelinableContext`: which layers each stage gets."""

import pytest
import torch
from torch import nn

from stoker.dialects.colossalai.builder.pipeline import partition_uniform
from stoker.dialects.colossalai.pipeline.pipelinable import PipelinableContext
from stoker.dialects.colossalai.utils import activation_checkpoint, report_memory_usage

pytestmark = pytest.mark.unit


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Linear(2, 2)
        self.blocks = nn.Sequential(*(nn.Linear(2, 2) for _ in range(4)))
        self.head = nn.Linear(2, 40)


def context(policy, sequence=None, model=Net):
    made = PipelinableContext(policy)
    with made:
        built = model()
    nn.Sequential(nn.Linear(1, 1))  # built later, and not part of it
    made.to_layer_list(sequence)
    return built, made


@pytest.mark.parametrize(
    ("policy", "chunks", "stages"),
    [
        ("uniform", 1, [["stem", "blocks.0", "blocks.1"], ["blocks.2", "blocks.3", "head"]]),
        ("uniform", 2, [["stem", "blocks.2"], ["blocks.0", "blocks.1", "blocks.3", "head"]]),
        ("balanced", 1, [["stem", *(f"blocks.{n}" for n in range(4))], ["head"]]),
        ({0: [(0, 1)], 1: [(1, 6)]}, 1, [["stem"], [*(f"blocks.{n}" for n in range(4)), "head"]]),
    ],
)
def test_a_policy_decides_which_layers_a_stage_gets(policy, chunks, stages):
    model, made = context(policy)
    names = {module: name for name, module in model.named_modules()}
    for rank, expected in enumerate(stages):
        stage = made.partition(chunks, 2, rank)
        assert isinstance(stage, nn.ModuleList) is (chunks == 2)
        assert [names[one] for one in stage.modules() if one in names] == expected


def test_functions_run_where_the_sequence_has_them_and_stay_with_their_module():
    sequence = [
        (torch.neg, "front"),
        "stem",
        torch.relu,
        "SPLIT_NODE",
        (torch.abs, "front"),
        "head",
    ]
    model, made = context("customized", sequence)
    first, last = (made.partition(1, 2, rank) for rank in (0, 1))
    x = torch.randn(3, 2)
    middle = model.stem(-x).relu()
    assert first(x).equal(middle)
    assert last(-middle).equal(model.head(middle))


@pytest.mark.parametrize(
    ("policy", "sequence", "message"),
    [
        ("balancd", None, "policy 'balancd' makes no 2 stages: expected 'balanced', 'uniform'"),
        ("customized", ["stem", "head"], "policy 'customized' makes no 2 stages"),
        ("uniform", ["stem", "blocks.9"], "the model has no module 'blocks.9'"),
        ("uniform", [torch.relu, "stem"], "the sequence begins with a function"),
        ("uniform", ["stem", (torch.relu, "front")], 'ends with a .function, "front".'),
    ],
)
def test_what_cannot_be_cut_is_rejected_with_the_reason(policy, sequence, message):
    with pytest.raises(ValueError, match=message):
        context(policy, sequence)[1].partition(1, 2, 0)


def test_a_context_without_a_model_is_rejected():
    with pytest.raises(ValueError, match="no model with layers was built"):
        context("uniform", model=lambda: nn.Linear(2, 2))


@pytest.mark.parametrize(
    ("items", "size", "chunks", "ranges"),
    [
        (6, 4, 1, [[(0, 1)], [(1, 2)], [(2, 4)], [(4, 6)]]),
        (8, 2, 2, [[(0, 2), (4, 6)], [(2, 4), (6, 8)]]),
    ],
)
def test_items_are_divided_evenly_and_the_last_ranks_get_the_rest(items, size, chunks, ranges):
    assert partition_uniform(items, size, chunks) == ranges


def test_items_that_do_not_fill_the_chunks_are_rejected():
    with pytest.raises(ValueError, match="7 layers cannot be divided into 2 equal chunks"):
        partition_uniform(7, 2, 2)


@pytest.mark.parametrize("offload", [(), (False,)], ids=["v0.1", "later"])
def test_a_function_is_called_again_in_backward(offload):
    calls = []

    def square(x):
        calls.append(len(calls))
        return x * x

    x = torch.ones(2, requires_grad=True)
    activation_checkpoint.checkpoint(square, *offload, x).sum().backward()
    assert (calls, x.grad.tolist()) == ([0, 1], [2.0, 2.0])
    with pytest.raises(ValueError, match="activation_offload=False"):
        activation_checkpoint.checkpoint(square, True, x)


def test_memory_is_reported_on_request(capsys):
    report_memory_usage("after init", report_cpu=True)
    assert capsys.readouterr().out.startswith("after init: memory host at most ")
