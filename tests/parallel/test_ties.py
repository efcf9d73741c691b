"""Tied parameters stay one parameter: in every layout, in checkpoints, and in weights alone."""

import functools
import logging

import pytest
import torch
from safetensors.torch import save_file

from stoker import Layout, load_weights
from stoker.parallel import tied_names
from support.pool import pool
from support.tasks import ties

TIED = ["gpt2", "t5", "three names", "blocks tied", "one block", "in stages"]
SPLIT = "would separate: make them one parameter, or two independent tensors"


@functools.cache
def expected(name):
    return ties.trained(None, name)


def check(found, right):
    for tensors, wanted in zip(found, right, strict=True):
        assert tensors.keys() >= wanted.keys()
        for name, tensor in wanted.items():
            torch.testing.assert_close(tensors[name], tensor, rtol=0, atol=1e-10)


@pytest.mark.slow
@pytest.mark.parametrize("name", TIED)
def test_a_tied_model_resumes_to_the_same_bits(name, tmp_path):
    ties.trained(None, name, tmp_path, 2)
    found = ties.trained(None, name, tmp_path)
    for tensors, wanted in zip(found, expected(name), strict=True):
        assert tensors.keys() == wanted.keys()
        assert all(torch.equal(tensors[key], tensor) for key, tensor in wanted.items())


@pytest.mark.slow
@pytest.mark.process
@pytest.mark.parametrize("name", TIED)
def test_shards_keep_ties_and_resume_in_one_process_and_back(name, tmp_path):
    layout = Layout(shard=2)
    pool().run(2, ties.trained, layout, name, tmp_path, 1)
    ties.trained(None, name, tmp_path, 2)
    pool().run(2, ties.trained, Layout(replicate=2), name, tmp_path, 3)
    for found in pool().run(2, ties.trained, layout, name, tmp_path, 4):
        check(found, expected(name))


STAGES = [
    Layout(pipeline=2),
    Layout(pipeline=2, split=["3"]),
    Layout(pipeline=2, virtual=2, schedule="interleaved"),
    Layout(pipeline=4),
    Layout(pipeline=2, shard=2),
]


@pytest.mark.slow
@pytest.mark.process
@pytest.mark.parametrize("layout", STAGES, ids=str)
def test_ties_across_stages_survive_a_change_to_one_process_and_back(layout, tmp_path):
    pool().run(layout.processes, ties.trained, layout, "in stages", tmp_path, 1)
    ties.trained(None, "in stages", tmp_path, 3)  # changes what only one of the names has
    for found in pool().run(layout.processes, ties.trained, layout, "in stages", tmp_path, 4):
        check(found, expected("in stages"))
        weights, averages = found
        for names in tied_names(ties.model_of("in stages")):
            assert all(torch.equal(weights[name], weights[names[0]]) for name in names)
            held = [averages[name] for name in names if name in averages]
            assert all(torch.equal(one, held[0]) for one in held)


@pytest.mark.process
@pytest.mark.parametrize("name", ["with a buffer", "two parameters"])
def test_shards_refuse_tensors_that_share_memory(name):
    check(pool().run(2, ties.trained, Layout(replicate=2), name)[0], expected(name))
    with pytest.raises(AssertionError, match=SPLIT):
        pool().run(2, ties.trained, Layout(shard=2), name)


@pytest.mark.process
def test_a_tie_that_two_stages_of_a_process_cannot_keep_is_refused():
    layout = Layout(pipeline=2, virtual=2, schedule="interleaved", split=["2", "4", "6"])
    for found in pool().run(2, ties.trained, layout, "within a process"):
        check(found, expected("within a process"))
    layout = Layout(pipeline=2, shard=2, virtual=2, schedule="interleaved", split=["2", "4", "6"])
    with pytest.raises(AssertionError, match=r"1\.weight and 4\.weight are one parameter, which"):
        pool().run(4, ties.trained, layout, "within a process")


@pytest.mark.parametrize("name", TIED)
def test_weights_load_from_any_name_of_a_tied_parameter(name, tmp_path):
    model = ties.model_of(name)
    groups = tied_names(model)
    assert groups
    state = {key: tensor.clone() for key, tensor in model.state_dict().items()}
    for keep in (0, -1):
        others = {n for names in groups for n in names} - {names[keep] for names in groups}
        save_file({k: t for k, t in state.items() if k not in others}, tmp_path / "one.safetensors")
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.zero_()
        assert not any(load_weights(model, tmp_path / "one.safetensors").values())
        assert all(torch.equal(tensor, state[key]) for key, tensor in model.state_dict().items())


@pytest.mark.process
def test_stages_load_weights_from_the_name_of_another_process(tmp_path):
    weights, _ = ties.trained(None, "in stages", tmp_path)
    for layout in (Layout(pipeline=2), Layout(shard=2)):
        for faults, found in pool().run(2, ties.loaded, layout, "in stages", tmp_path):
            assert not any(faults.values())
            check([found], [weights])


def test_values_that_differ_in_a_file_are_reported(tmp_path, caplog):
    model = ties.model_of("three names")
    state = {key: tensor.clone() for key, tensor in model.state_dict().items()}
    state["head.weight"] += 1
    save_file(state, tmp_path / "untied.safetensors")
    with caplog.at_level(logging.WARNING):
        load_weights(model, tmp_path / "untied.safetensors")
    assert "embed.weight and head.weight are one parameter of this model, but differ" in caplog.text
    assert torch.equal(model.head.weight, state["embed.weight"])
