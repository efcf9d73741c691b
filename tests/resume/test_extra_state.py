"""Extra state of modules: saved and restored, or rejected before the first step."""

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from stoker import Engine, Trainer, hooks, load_weights

DATA = [(torch.ones(3, 4), torch.tensor([0, 1, 0]))] * 2
EXTRAS = {
    "dict": {"scale": 2.5, "names": ["a", ("b", None)]},
    "nested tensors": {"a": [1, {"b": torch.arange(3.0)}], 7: torch.ones(2, 2)},
    "bytes": b"\x00\x01",
    "none": None,
    "text": "words",
    "tensor": torch.arange(5),
}


class Extra(nn.Linear):
    def __init__(self, extra):
        super().__init__(4, 2)
        self.extra = extra

    def get_extra_state(self):
        return self.extra

    def set_extra_state(self, state):
        self.extra = state


def trainer(model, run_dir=None, chosen=None):
    engine = Engine(model, torch.optim.SGD(model.parameters(), lr=0.1), nn.CrossEntropyLoss())
    return Trainer(engine, chosen or hooks.default(progress=False), run_dir=run_dir)


def same(one, other):
    if isinstance(one, torch.Tensor):
        return isinstance(other, torch.Tensor) and one.equal(other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return type(one) is type(other) and one == other


@pytest.mark.parametrize("kind", EXTRAS)
def test_extra_state_is_restored_by_resume_and_from_weights(tmp_path, kind):
    model = nn.Sequential(Extra(EXTRAS[kind]), nn.Identity())
    trainer(model, tmp_path / "run").fit(DATA, epochs=1)
    sources = [tmp_path / "run", tmp_path / "run" / "model.safetensors"]
    for source in sources:
        other = nn.Sequential(Extra("nothing yet"), nn.Identity())
        mismatches = load_weights(other, source)
        assert not any(mismatches.values()), mismatches
        assert same(other[0].extra, EXTRAS[kind])
        assert other[0].weight.equal(model[0].weight)
    resumed = nn.Sequential(Extra("nothing yet"), nn.Identity())
    again = trainer(resumed, tmp_path / "run")
    again.fit(DATA, epochs=2, resume="must")  # its attributes differ
    assert again.run.step == 4
    assert same(resumed[0].extra, EXTRAS[kind])
    assert "0.weight" in load_file(sources[1])


def test_the_best_weights_have_their_extra_state(tmp_path):
    model = nn.Sequential(Extra({"a": 1}))
    chosen = [hooks.Loss(), hooks.KeepBest("train/loss"), hooks.Checkpoint()]
    trainer(model, tmp_path / "run", chosen).fit(DATA, epochs=2)
    assert model[0].extra == {"a": 1}


@pytest.mark.parametrize("chosen", ["default", "weights alone"])
def test_an_object_is_rejected_before_the_first_step(tmp_path, chosen):
    made = None if chosen == "default" else [hooks.SaveWeights()]
    one = trainer(nn.Sequential(Extra(object())), tmp_path / "run", made)
    with pytest.raises(TypeError, match="0._extra_state is an object, expected tensors"):
        one.fit(DATA, epochs=1)
    assert one.run.step == 0
    assert not (tmp_path / "run").exists()


def test_a_run_that_saves_nothing_takes_any_extra_state():
    one = trainer(nn.Sequential(Extra(object())))
    one.fit(DATA, epochs=1)
    assert one.run.step == 2


def test_values_that_a_state_dict_hook_adds_are_saved(tmp_path):
    def make():
        model = nn.Sequential(nn.Linear(4, 2))
        model.scales = {}
        model.register_state_dict_post_hook(
            lambda module, state, prefix, _: state.update({f"{prefix}scales": {"amax": [0.5, 2]}})
        )
        model.register_load_state_dict_pre_hook(
            lambda module, state, prefix, *_: module.scales.update(state.pop(f"{prefix}scales", {}))
        )
        return model

    trainer(make(), tmp_path / "run").fit(DATA, epochs=1)
    model = make()
    again = trainer(model, tmp_path / "run")
    again.fit(DATA, epochs=2, resume="must")  # its attributes differ
    assert again.run.step == 4
    assert model.scales == {"amax": [0.5, 2]}
