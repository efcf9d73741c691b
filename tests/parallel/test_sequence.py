from itertools import combinations, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from stoker.parallel.pipeline.stage_plan import balance, parts_of, plan_stages


class Blocks(nn.Module):
    def __init__(self, count: int = 12) -> None:
        super().__init__()
        self.embed = nn.Embedding(5, 2)
        self.blocks = nn.ModuleList(nn.Linear(2, 2) for _ in range(count))
        self.head = nn.Sequential(nn.LayerNorm(2), nn.Linear(2, 5))


class NamedParts(Blocks):
    pipeline_parts = ("embed", "blocks.*", "head")


def test_sequentials_are_looked_into():
    inner = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    assert parts_of(nn.Sequential(nn.Linear(2, 2), inner, nn.Linear(2, 1))) == [
        "0",
        "1.0",
        "1.1",
        "2",
    ]


def test_a_sequential_that_does_more_than_run_its_parts_is_one_part():
    hooked = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    hooked.register_forward_hook(lambda *_: None)
    assert parts_of(nn.Sequential(hooked, nn.Linear(2, 1))) == ["0", "1"]


def test_patterns_keep_the_order_of_modules_and_a_model_may_bring_its_own():
    names = ["embed", *(f"blocks.{i}" for i in range(12)), "head.0", "head.1"]
    assert parts_of(Blocks(), ("embed", "blocks.*", "head")) == names
    assert parts_of(NamedParts()) == names


@pytest.mark.parametrize(
    ("sequence", "message"),
    [
        (("embed", "block.*", "head"), "Blocks has no module 'block.*'; did you mean 'blocks"),
        (("embed", "blocks", "head"), "'blocks' is a ModuleList, which cannot be called.*blocks.*"),
        (("blocks.*", "head"), "parameter 'embed.weight' is in none of the parts"),
        (("embed", "blocks.*", "head", "embed"), "parts 'embed' and 'embed' overlap"),
    ],
)
def test_wrong_sequences_are_refused(sequence, message):
    with pytest.raises(ValueError, match=message):
        parts_of(Blocks(), sequence)


def test_what_is_no_sequence_is_refused_with_what_to_do():
    with pytest.raises(TypeError, match="Blocks is not an nn.Sequential.*pipeline_parts"):
        parts_of(Blocks())
    with pytest.raises(TypeError, match="a tuple of names, got the string 'embed'"):
        parts_of(Blocks(), "embed")


def test_named_split_points_are_the_first_parts_of_stages():
    plan = plan_stages(NamedParts(4), 3, split=("blocks.1", "head"))
    assert plan == [
        ["embed", "blocks.0"],
        ["blocks.1", "blocks.2", "blocks.3"],
        ["head.0", "head.1"],
    ]


@pytest.mark.parametrize(
    ("split", "message"),
    [
        (("blocks.1",), "1 split points make 2 stages, but the pipeline has 3"),
        (("blocks.1", "haed"), "'haed' is not a part of the model"),
        (("blocks.9", "head"), "'blocks.9' is not a part of the model; did you mean"),
        (("head", "blocks.1"), "'blocks.1' leaves a stage before it empty"),
        (("embed", "head"), "'embed' leaves a stage before it empty"),
    ],
)
def test_wrong_split_points_are_refused(split, message):
    with pytest.raises(ValueError, match=message):
        plan_stages(NamedParts(4), 3, split=split)


def test_fewer_parts_than_stages_are_refused():
    with pytest.raises(ValueError, match=r"Sequential has 2 parts .*\(0, 1\), too few for 3"):
        plan_stages(nn.Sequential(nn.Linear(1, 1), nn.ReLU()), 3)


def test_parts_without_parameters_stay_with_the_one_before():
    layers = [nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4), nn.ReLU()]
    assert plan_stages(nn.Sequential(*layers), 2) == [["0", "1"], ["2", "3"]]


weights = st.lists(st.integers(0, 9), min_size=1, max_size=8)


@given(weights, st.data())
def test_no_other_split_has_a_lighter_heaviest_stage(weights, data):
    stages = data.draw(st.integers(1, len(weights)))

    def heaviest(starts):
        return max(sum(weights[a:b]) for a, b in pairwise([*starts, len(weights)]))

    starts = balance(weights, stages)
    assert starts[0] == 0
    assert len(starts) == stages
    assert starts == sorted(set(starts))
    others = combinations(range(1, len(weights)), stages - 1)
    assert heaviest(starts) == min(heaviest((0, *other)) for other in others)
