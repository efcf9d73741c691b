"""Models of transformers as pipelines, unmodified: they train like one process.

``make models`` runs every architecture in every layout, which takes some minutes. Otherwise a
seeded sample of them runs.
"""

import functools
import os
import random
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import default_collate

from stoker import Layout
from stoker.engine.target_weight import target_weight
from stoker.parallel.pipeline.block_plan import find_blocks
from stoker.parallel.pipeline.stage_plan import plan_stages
from support.pool import pool
from support.tasks import stock_pipelines as tasks

ALL = os.environ.get("STOKER_MODELS") == "all"
LAYOUTS = {
    "pi2": Layout(pipeline=2),
    "in2": Layout(pipeline=2, schedule="interleaved"),
    "zb2": Layout(pipeline=2, schedule="zero-bubble"),
    "pi4": Layout(pipeline=4),
    "gp4": Layout(pipeline=4, schedule="gpipe", microbatches=2),
    "pi2×re2": Layout(pipeline=2, replicate=2),
    "pi2×sh2": Layout(pipeline=2, shard=2),
    "pi2×te2": Layout(pipeline=2, tensor=2),
    "pi2×re2×sh2": Layout(pipeline=2, replicate=2, shard=2),
    "pi2×re2×te2": Layout(pipeline=2, replicate=2, tensor=2),
    "pi2×sh2×te2": Layout(pipeline=2, shard=2, tensor=2),
}
CASES = [
    (name, tied, layout)
    for name in tasks.CONFIGS
    for tied in ((True, False) if name in tasks.TIED else (False,))
    for layout in LAYOUTS
    if (name, layout) != ("t5", "zb2")  # refused
]
ALWAYS = [("gpt2", True, "pi2"), ("bert", True, "pi2"), ("llama", False, "pi2×te2")]
SMALL = [case for case in CASES if LAYOUTS[case[2]].processes == 2]
SAMPLED = CASES if ALL else sorted({*ALWAYS, *random.Random(21).sample(SMALL, 3)})


@functools.cache
def alone(name, tied):
    """What one process does."""
    return tasks.trained(None, name, tied)


def run(layout, task, *args):
    return pool().run(layout.processes, task, layout, *args)


def check_weights(found, expected):
    assert found.keys() == expected.keys()
    for name, weight in expected.items():
        torch.testing.assert_close(found[name], weight, rtol=0, atol=1e-10, msg=name)


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "tied", "layout"),
    SAMPLED,
    ids=[f"{name}-{'tied' if tied else 'untied'}-{layout}" for name, tied, layout in SAMPLED],
)
def test_a_stock_model_trains_like_one_process(name, tied, layout, tmp_path):
    weights, losses, predicted, moments = alone(name, tied)
    ranks = run(LAYOUTS[layout], tasks.trained, name, tied, tmp_path / "saved")
    for found in ranks:
        check_weights(found[0], weights)
        assert found[1] == pytest.approx(losses, abs=1e-10)
        torch.testing.assert_close(found[2], predicted, rtol=0, atol=1e-10)
    held = [number for found in ranks for number in found[3]]
    assert {*held} == moments.keys()
    for found in ranks:
        assert found[3] == pytest.approx({n: moments[n] for n in found[3]}, abs=1e-10)
    before, after = tasks.resumed(None, name, tied, tmp_path / "saved")
    check_weights(before, weights)
    if (name, tied, layout) in ALWAYS or ALL:
        for found in run(LAYOUTS[layout], tasks.resumed, name, tied, tmp_path / "saved"):
            check_weights(found[1], after)


@pytest.mark.process
def test_the_example_of_the_page_runs_as_a_pipeline():
    page = (Path(__file__).parents[2] / "docs" / "pipeline.md").read_text()
    example = page.partition("```python\n")[2].partition("```")[0]
    first, last = pool().run(2, tasks.run_example, example)
    assert "transformer.wte.weight" in first[0]
    assert "lm_head.weight" in last[0]
    assert first[1] == last[1] == 8


@pytest.mark.process
def test_a_model_that_stages_cannot_run_is_refused_in_every_process():
    for rank in pool().run(2, tasks.refusals):
        for fault, message in tasks.FAULTS.items():
            assert message in rank.get(fault, "trained"), fault


@pytest.mark.process
@pytest.mark.parametrize(
    "layout",
    [Layout(pipeline=2), Layout(pipeline=2, schedule="zero-bubble")],
    ids=["1f1b", "zero-bubble"],
)
def test_any_model_with_a_list_of_blocks_trains_like_one_process(layout, tmp_path):
    expected = tasks.foreign(None)
    for found in run(layout, tasks.foreign, tmp_path / "saved"):
        check_weights(found, expected)
    check_weights(tasks.loaded(None, tmp_path / "saved"), expected)
    tasks.foreign(None, tmp_path / "alone")
    for found in run(layout, tasks.loaded, tmp_path / "alone"):
        check_weights(found, expected)


@pytest.mark.process
def test_a_parameter_of_no_stage_is_not_sharded():
    for message in pool().run(4, tasks.shards_a_parameter_of_no_stage):
        assert "parameter 'positions' is in no part of one pipeline stage" in message


@pytest.mark.parametrize(
    ("name", "first", "last"),
    [
        ("gpt2", ["transformer.wte", "transformer.wpe"], ["transformer.ln_f", "lm_head"]),
        ("bert", ["bert.embeddings"], ["cls"]),
        ("t5", ["shared", "encoder.embed_tokens"], ["encoder.final_layer_norm", "decoder"]),
    ],
)
def test_embeddings_are_in_the_first_stage_and_the_head_is_in_the_last(name, first, last):
    model = tasks.stock(name)
    plan = plan_stages(model, 2)
    assert plan[0][: len(first)] == first
    assert {*last} <= {*plan[-1]}
    assert [part for stage in plan for part in stage] == find_blocks(model).parts


def test_a_split_names_blocks_and_decides_between_several_lists():
    model = tasks.stock("t5")
    plan = plan_stages(model, 2, split=("decoder.block.1",))
    assert plan[1][0] == "decoder.block.1"
    with pytest.raises(ValueError, match=r"'encoder.embed_tokens' is not one at which T5.* can be"):
        plan_stages(model, 2, split=("encoder.embed_tokens",))
    with pytest.raises(ValueError, match=r"Foreign has 4 blocks \(blocks.0 to blocks.3\), too few"):
        plan_stages(tasks.Foreign(), 6)


@pytest.mark.parametrize("name", tasks.CONFIGS)
def test_the_weight_of_a_batch_is_what_the_loss_of_a_model_divides_by(name):
    model = tasks.stock(name)
    weigh = target_weight(None, model).of
    data = tasks.samples(name)
    parts = [default_collate(data[:3]), default_collate(data[3:8])]
    together = default_collate(data[:8])
    with tasks.InFloat64(), torch.no_grad():
        losses = [float(model(**part).loss) for part in parts]
        mean = sum(weigh(p) * loss for p, loss in zip(parts, losses, strict=True)) / weigh(together)
        assert mean == pytest.approx(float(model(**together).loss), abs=1e-12)
    assert weigh({**together, "num_items_in_batch": 3}) is None
    assert weigh({**together, "labels": together["labels"].double()}) is None


def test_lists_within_blocks_do_not_count():
    experts = nn.ModuleList(nn.Linear(2, 2) for _ in range(9))
    block = nn.ModuleDict({"experts": experts, "norm": nn.LayerNorm(2)})
    model = nn.ModuleDict(
        {"blocks": nn.ModuleList([block, nn.ModuleDict({"norm": nn.LayerNorm(2)})])}
    )
    assert find_blocks(model).blocks == ["blocks.0", "blocks.1"]
    assert find_blocks(nn.Linear(1, 1)) is None
