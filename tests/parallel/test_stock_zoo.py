"""Many more architectures of transformers: each trains as in one process, or is refused.

``make models`` runs all of them in all layouts, which takes some minutes. Otherwise a seeded sample
runs.
"""

import functools
import os
import random
from itertools import product

import pytest
import torch
from torch.utils.data import default_collate

from stoker import Layout
from stoker.engine.target_weight import target_weight
from stoker.parallel.pipeline.block_plan import find_blocks
from support.pool import pool
from support.tasks import stock_zoo

LAYOUTS = {
    "re2": Layout(replicate=2, unused=True),
    "sh2": Layout(shard=2),
    "te2": Layout(tensor=2),
    "pi2": Layout(pipeline=2),
    "co2": Layout(context=2),
}
NO_PLAN = "there is no ready plan for"
EAGER = "computes attention by 'eager', but context needs"
ELSEWHERE = "which is in another stage: a stage gets only what the last block before it returns"
TWICE = "runs in an earlier pipeline stage and again in stage 1"
STATISTICS = "resnet"
"""Trains differently in a pipeline, which is logged: its batch norms see micro-batches."""

REFUSED = {
    **dict.fromkeys(product(("mamba", "mamba2", "rwkv", "albert"), ("te2",)), NO_PLAN),
    **dict.fromkeys(product(("albert groups", "xlnet", "squeezebert"), ("te2",)), NO_PLAN),
    **dict.fromkeys(product(("convnext", "resnet"), ("te2",)), NO_PLAN),
    ("gpt oss", "te2"): "the plan for GptOssForCausalLM is wrong: model.layers.0.self_attn fails",
    ("led", "te2"): "the plan for LEDForConditionalGeneration is wrong: led.",
    ("mobilebert", "te2"): "MobileBertForMaskedLM fails once it is split",
    ("t5 classifier", "te2"): "does not run with its dummy_inputs",
    **dict.fromkeys(product(("deberta v2", "mpnet", "xlnet", "vit mae"), ("pi2",)), ELSEWHERE),
    ("bart decoder", "pi2"): "'model.decoder.layernorm_embedding' is registered after the blocks",
    ("rwkv", "pi2"): "the model changes a weight of 'rwkv.blocks.2' when it runs",
    ("albert", "pi2"): "AlbertForMaskedLM is not an nn.Sequential",
    ("albert groups", "pi2"): TWICE,
    ("squeezebert", "pi2"): "'transformer.encoder.layers.0' is registered before the blocks",
    ("xlm", "pi2"): "the model takes an element of 'transformer.layer_norm1', which is in another",
    ("llava", "pi2"): "failed in a trial (IndexError: tuple index out of range)",
    **dict.fromkeys(product(("gpt neo", "gptj", "codegen", "bloom", "mpt"), ("co2",)), EAGER),
    **dict.fromkeys(product(("gemma2", "gpt oss", "mamba", "mamba2", "rwkv"), ("co2",)), EAGER),
    **dict.fromkeys(product(("deberta", "deberta v2", "mpnet", "xlnet", "xlm"), ("co2",)), EAGER),
    **dict.fromkeys(product(("fnet", "squeezebert", "led", "convnext"), ("co2",)), EAGER),
    ("resnet", "co2"): EAGER,
    ("recurrent gemma", "co2"): "does not call scaled_dot_product_attention",
    ("albert", "co2"): "has no list of modules of one class",
    ("albert groups", "co2"): "a block attends from 5 to 5 positions",
    **dict.fromkeys(product(("mt5", "t5 classifier"), ("co2",)), "its mask does not come from"),
    ("swin", "co2"): "SwinForImageClassification fails once it is split",
    **dict.fromkeys(product(("segformer", "vit mae"), ("co2",)), "a block got a tensor of shape"),
}
"""What each model that cannot be split is told."""

ALL = os.environ.get("STOKER_MODELS") == "all"
CASES = [c for c in product(stock_zoo.ZOO, LAYOUTS) if c != (STATISTICS, "pi2")]
ALWAYS = [("falcon", "te2"), ("xlm", "te2"), ("bart", "pi2"), ("rwkv", "pi2")]
SAMPLED = CASES if ALL else [*ALWAYS, *random.Random(21).sample(CASES, 3)]


@functools.cache
def alone(name):
    return stock_zoo.trained(None, name)


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.parametrize(("name", "layout"), SAMPLED)
def test_a_model_trains_as_in_one_process_or_is_refused(name, layout):
    ranks = pool().run(2, stock_zoo.attempt, LAYOUTS[layout], name)
    if (name, layout) in REFUSED:
        for error, is_ours in ranks:
            assert REFUSED[name, layout] in error
            assert is_ours
        return
    weights, losses = alone(name)
    for found, found_losses in ranks:
        assert not isinstance(found, str), found
        assert found.keys() == weights.keys()
        assert max((found[n] - w).abs().max().item() for n, w in weights.items()) < 1e-10
        assert found_losses == pytest.approx(losses, abs=1e-10)


@pytest.mark.parametrize(
    ("name", "before", "after"),
    [
        ("opt", ["model.decoder.embed_positions"], ["model.decoder.final_layer_norm"]),
        ("bart", ["model.encoder.layernorm_embedding"], ["model.decoder"]),
    ],
)
def test_parts_of_a_pipeline_are_in_the_order_in_which_they_run(name, before, after):
    found = find_blocks(stock_zoo.make(name))
    assert {*before} <= {*found.before}
    assert {*after} <= {*found.after}


@pytest.mark.parametrize("name", ["bart decoder", "xlnet", "gpt neo", "llama subclass"])
def test_the_loss_of_a_causal_model_counts_the_labels_by_which_it_is_weighed(name):
    model = stock_zoo.make(name.replace("llama subclass", "qwen2"))
    if name == "llama subclass":
        forward = lambda self, **given: super(type(self), self).forward(**given)
        model.__class__ = type("OurForCausalLM", (type(model),), {"forward": forward})
    weigh = target_weight(None, model).of
    data = stock_zoo.samples("qwen2")
    parts = [default_collate(data[:3]), default_collate(data[3:8])]
    together = default_collate(data[:8])
    with stock_zoo.InFloat64(), torch.no_grad():
        losses = [float(model(**part).loss) for part in parts]
        mean = sum(weigh(p) * loss for p, loss in zip(parts, losses, strict=True)) / weigh(together)
        assert mean == pytest.approx(float(model(**together).loss), abs=1e-12)


def test_a_causal_model_with_an_unknown_loss_is_not_weighed():
    model = stock_zoo.make("qwen2")
    model.__class__ = type("OurForCausalLM", (type(model),), {"forward": lambda self, **_: None})
    assert target_weight(None, model) is None


def test_the_loss_of_a_model_with_adapters_is_weighed_by_its_labels():
    class Config:
        def __init__(self, adds_tokens):
            self.is_prompt_learning = adds_tokens

    class Adapted:  # as in peft
        def __init__(self, adds_tokens):
            self.peft_config = {"default": Config(adds_tokens)}

        def get_base_model(self):
            return stock_zoo.make("qwen2")

    labels = stock_zoo.samples("qwen2")[0]["labels"][None]
    assert target_weight(None, Adapted(adds_tokens=False)).of({"labels": labels}) == 8
    assert target_weight(None, Adapted(adds_tokens=True)) is None
