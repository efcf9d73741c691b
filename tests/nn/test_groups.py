"""Groups of parameters."""

import pytest
import torch
from torch import nn

from stoker.nn import parameter_groups


def net():
    model = nn.Sequential(nn.Linear(2, 3), nn.LayerNorm(3), nn.Linear(3, 3), nn.Linear(3, 1))
    model[2].weight.requires_grad = False
    return model


def test_norms_biases_and_names_have_options_of_their_own():
    model = net()
    groups = parameter_groups(
        model,
        {"lr": 0.1, "clip_norm": None},
        norms={"weight_decay": 0.0},
        biases={"weight_decay": 0.5},
        named={"weight": {"lr": 0.2}},
    )
    found = {tuple(sorted((k, v) for k, v in g.items() if k != "params")): g for g in groups}
    weights = found[("lr", 0.2),]["params"]
    assert [id(p) for p in weights] == [id(model[0].weight), id(model[3].weight)]
    assert found[("lr", 0.2), ("weight_decay", 0.0)]["params"] == [model[1].weight]
    assert len(found[("lr", 0.1), ("weight_decay", 0.5)]["params"]) == 4
    assert len(found) == 3


def test_a_shared_parameter_is_in_one_group_and_an_optimizer_takes_them():
    tied = nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2)])
    tied[1].weight = tied[0].weight
    groups = parameter_groups(tied, biases={"weight_decay": 0.0})
    assert sorted(len(group["params"]) for group in groups) == [1, 2]
    optimizer = torch.optim.AdamW(groups, lr=0.5, weight_decay=0.1)
    assert {g["weight_decay"] for g in optimizer.param_groups} == {0.0, 0.1}
    assert {g["lr"] for g in optimizer.param_groups} == {0.5}


def test_without_options_there_is_one_group():
    (group,) = parameter_groups(nn.Linear(2, 2))
    assert list(group) == ["params"]
    with pytest.raises(TypeError, match="model"):
        parameter_groups()
