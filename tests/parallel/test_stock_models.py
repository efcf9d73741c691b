"""Unmodified models of transformers in layouts with tensor and context, against one process.

``make models`` runs every model in every layout, which takes some ten minutes. Otherwise a seeded
sample runs.
"""

import functools
import os
import random
from itertools import product

import pytest

from stoker import Layout
from support.pool import pool
from support.tasks import stock_models

pytestmark = [pytest.mark.process, pytest.mark.slow]

LAYOUTS = {
    "te2": Layout(tensor=2),
    "te4": Layout(tensor=4),
    "re2×te2": Layout(replicate=2, tensor=2),
    "sh2×te2": Layout(shard=2, tensor=2),
    "re2×sh2×te2": Layout(replicate=2, shard=2, tensor=2),
    "te2+seq": Layout(tensor=2, sequence_parallel=True),
    "te2+loss": Layout(tensor=2, loss_parallel=True),
    "te4+both": Layout(tensor=4, sequence_parallel=True, loss_parallel=True),
    "re2×te2+both": Layout(replicate=2, tensor=2, sequence_parallel=True, loss_parallel=True),
    "sh2×te2+both": Layout(shard=2, tensor=2, sequence_parallel=True, loss_parallel=True),
    "co2": Layout(context=2),
    "co4": Layout(context=4),
    "re2×co2": Layout(replicate=2, context=2),
    "co2×sh2": Layout(context=2, shard=2),
    "co2×te2": Layout(context=2, tensor=2),
    "co2×te2+loss": Layout(context=2, tensor=2, loss_parallel=True),
}
REFUSED = {("t5", name) for name in LAYOUTS if "co" in name} | {("vit", "co4")}
"""T5 computes its bias of positions within the blocks; the images of ViT are 5 positions."""

ALL = os.environ.get("STOKER_MODELS") == "all"
CASES = [
    (model, layout, tied, accumulate)
    for model, layout in product(stock_models.MODELS, LAYOUTS)
    for tied, accumulate in ((False, 1), (True, 2))
    if (model, layout) not in REFUSED
]
ALWAYS = [("bert", "te2", True, 1), ("qwen3", "co2", False, 1)]
SMALL = [c for c in CASES if LAYOUTS[c[1]].processes == 2 and c[0] not in ("bert", "qwen3")]
SAMPLED = CASES if ALL else [*ALWAYS, *random.Random(21).sample(SMALL, 2)]


@functools.cache
def alone(model, tied, accumulate):
    return stock_models.trained(None, model, tied, accumulate)


def check(found, expected, limit=1e-10):
    weights, results, predicted = found
    right_weights, right_results, right_predicted = expected
    assert weights.keys() == right_weights.keys()
    assert max((weights[n] - w).abs().max().item() for n, w in right_weights.items()) < limit
    for row, right in zip(results, right_results, strict=True):
        assert row == pytest.approx(right, abs=limit)
    assert predicted.shape == right_predicted.shape
    assert (predicted - right_predicted).abs().max() < limit


@pytest.mark.parametrize(("model", "layout", "tied", "accumulate"), SAMPLED)
def test_a_stock_model_trains_as_in_one_process(model, layout, tied, accumulate):
    expected = alone(model, tied, accumulate)
    task = stock_models.trained
    for found in pool().run(
        LAYOUTS[layout].processes, task, LAYOUTS[layout], model, tied, accumulate
    ):
        check(found, expected)


PATHS = [
    ("llama", "te2", "co2"),
    ("bert", "co2", "te2"),
    *([] if not ALL else [("mixtral", "sh2×te2", "co2×sh2"), ("t5", "re2×sh2×te2", "te4")]),
    *([] if not ALL else [("qwen3", "co2×te2", "re2×sh2×te2"), ("gpt2", "te4", "re2×co2")]),
]


@pytest.mark.parametrize(("model", "first", "second"), PATHS[: None if ALL else 1])
def test_a_layout_resumes_what_another_saved(model, first, second, tmp_path):
    one, two = LAYOUTS[first], LAYOUTS[second]
    task = stock_models.trained
    pool().run(one.processes, task, one, model, True, 1, None, tmp_path, 3)
    for found in pool().run(two.processes, task, two, model, True, 1, None, tmp_path):
        weights, _, predicted = found
        right, _, right_predicted = alone(model, True, 1)
        assert max((weights[n] - w).abs().max().item() for n, w in right.items()) < 1e-10
        assert (predicted - right_predicted).abs().max() < 1e-10


@pytest.mark.parametrize(
    ("model", "layout", "options", "message"),
    [
        (
            "bert",
            "te2",
            {"num_attention_heads": 1},
            "bert.encoder.layer.0.attention.self.query is 1 heads wide, which does not divide "
            "evenly by 2 processes",
        ),
        (
            "t5",
            "co2",
            {},
            "a block masks 5 positions, but there are 10: its mask does not come from outside",
        ),
        (
            "llama",
            "co2",
            {"attn_implementation": "eager"},
            "LlamaForCausalLM computes attention by 'eager', but context needs",
        ),
    ],
)
def test_what_cannot_be_split_is_refused(model, layout, options, message):
    for error in pool().run(2, stock_models.refusal, LAYOUTS[layout], model, options):
        assert message in error


def test_dropout_of_heads_differs_between_processes():
    (first, then), (second, then_too) = pool().run(
        2, stock_models.drawn_in_training, LAYOUTS["te2"]
    )
    assert first.shape == second.shape
    assert not first.equal(second)
    assert then.equal(then_too)
