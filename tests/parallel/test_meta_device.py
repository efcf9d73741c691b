"""Models that are made on the meta device get their values in the layout that trains them."""

import json

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from stoker import Engine, Layout
from stoker.checkpoint import CheckpointError
from stoker.resume.weights import load_weights
from support.pool import pool
from support.tasks.meta_models import make_model, materialized, staged


def same(found, expected):
    return found.keys() == expected.keys() and all(
        torch.equal(found[name], value) for name, value in expected.items()
    )


def test_one_process_has_the_bits_of_an_ordinary_model():
    expected, found = materialized(None, "cpu"), materialized(None, "meta")
    assert same(found[0], expected[0])
    assert same(found[1], expected[1])


@pytest.mark.process
@pytest.mark.parametrize("layout", [Layout(shard=2), Layout(replicate=2)], ids=str)
def test_two_processes_have_the_bits_of_an_ordinary_model(layout):
    expected = pool().run(2, materialized, layout, "cpu")
    found = pool().run(2, materialized, layout, "meta")
    for one, other in zip(found, expected, strict=True):
        assert same(one[0], other[0])
        assert same(one[1], other[1])
        assert one[2] == other[2]
    assert same(found[0][0], materialized(None, "cpu")[0])


@pytest.mark.process
def test_a_stage_of_a_pipeline_allocates_its_own_parts_alone():
    expected = pool().run(2, staged, "cpu")
    found = pool().run(2, staged, "meta")
    for (weights, held, allocated), (right, held_too, _) in zip(found, expected, strict=True):
        assert same(weights, right)
        assert held == held_too
        assert allocated <= held
    assert sum(held for _, held, _ in found) == sum(one.numel() for one in found[0][0].values())


def write_folder(folder, weights):
    """Write weights in two files with an index, as Hugging Face does."""
    names = list(weights)
    parts = {"a.safetensors": names[::2], "b.safetensors": names[1::2]}
    for file, chosen in parts.items():
        save_file({name: weights[name].contiguous() for name in chosen}, folder / file)
    places = {name: file for file, chosen in parts.items() for name in chosen}
    index = {"metadata": {}, "weight_map": places}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def other_weights():
    torch.manual_seed(9)
    return {
        name: torch.randn_like(value)
        for name, value in make_model("cpu").state_dict().items()
        if name != "head.weight"  # tied
    }


@pytest.mark.process
def test_shards_are_loaded_from_several_files(tmp_path):
    weights = other_weights()
    write_folder(tmp_path, weights)
    for before, _, _ in pool().run(2, materialized, Layout(shard=2), "meta", tmp_path):
        assert all(torch.equal(before[name], value) for name, value in weights.items())


def test_a_folder_with_a_single_file_is_loaded(tmp_path):
    weights = other_weights()
    save_file(weights, tmp_path / "model.safetensors")
    model = make_model("cpu")
    assert load_weights(model, tmp_path) == {
        "missing": [],
        "unexpected": [],
        "of another shape": [],
    }
    assert all(torch.equal(model.state_dict()[name], one) for name, one in weights.items())


def test_a_missing_file_of_an_index_is_named(tmp_path):
    write_folder(tmp_path, other_weights())
    (tmp_path / "b.safetensors").unlink()
    with pytest.raises(CheckpointError, match="cannot be read"):
        load_weights(make_model("cpu"), tmp_path)


def test_values_that_nothing_gives_are_refused():
    class Table(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(2, 2)
            self.register_buffer("table", torch.arange(3.0), persistent=False)

    with torch.device("meta"):
        model = Table()
    with pytest.raises(ValueError, match=r"1 parameters or buffers of Table .* \(first: table\)"):
        Engine(model)


def test_buffers_of_transformers_are_computed_again():
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=17, hidden_size=8, intermediate_size=16, num_hidden_layers=2,
        num_attention_heads=2,
    )  # fmt: skip
    torch.manual_seed(0)
    expected = LlamaForCausalLM(config)
    with torch.device("meta"):
        model = LlamaForCausalLM(config)
    torch.manual_seed(0)
    Engine(model)
    assert same(dict(model.named_buffers()), dict(expected.named_buffers()))
    assert same(model.state_dict(), expected.state_dict())


def on_meta(make):
    with torch.device("meta"):
        return make()


def test_a_parameter_that_is_set_in_part_is_refused():
    class Tokens(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = nn.Parameter(torch.zeros(3, 2))
            self.reset_parameters()

        def reset_parameters(self):
            nn.init.ones_(self.table[0])

    with pytest.raises(ValueError, match=r"1 parameters or buffers of Tokens .* \(first: table\)"):
        Engine(on_meta(Tokens))


def test_a_tensor_that_is_no_buffer_is_refused():
    class Scaled(nn.Linear):
        def __init__(self):
            super().__init__(2, 2)
            self.scale = torch.ones(2)

    with pytest.raises(
        ValueError, match=r"scale of Scaled is a tensor on the meta device, but not"
    ):
        Engine(on_meta(Scaled))


def test_a_value_that_only_the_constructor_sets_is_reported(caplog):
    class Gated(nn.Module):
        def __init__(self):
            super().__init__()
            self.gate = nn.Linear(2, 2)
            nn.init.constant_(self.gate.bias, -2.0)

    with caplog.at_level("WARNING"):
        Engine(on_meta(lambda: nn.Linear(2, 2)))
        assert not caplog.messages
        Engine(on_meta(Gated))
    assert "1 parameters of Gated were set more often" in caplog.text
    assert "(first: gate.bias)" in caplog.text
