"""LiBai's lazy configs: OmegaConf nodes, files, and what a YAML may name."""

import builtins
import copy
import logging
import pickle
from dataclasses import dataclass

import pytest
import torch
from omegaconf import DictConfig, OmegaConf
from torch import nn

from stoker.config.names import UnknownNameError
from stoker.dialects.libai.config import (
    LazyCall,
    LazyConfig,
    configurable,
    get_config,
    instantiate,
    try_get_key,
)
from stoker.dialects.libai.engine.default import prepared
from stoker.dialects.libai.models import GraphBase
from stoker.dialects.libai.models.build import build_graph
from stoker.dialects.libai.optim.build import build_optimizer, reduce_param_groups
from stoker.dialects.libai.scheduler.build import build_lr_scheduler
from stoker.dialects.libai.scheduler.lr_scheduler import WarmupCosineLR, WarmupPolynomialLR
from support.tasks.libai import Net, config


@dataclass
class Point:
    x: int
    y: int = 2


def double(value):
    return 2 * value


def test_a_node_is_an_omegaconf_section_that_any_config_can_hold():
    cfg = OmegaConf.create()
    cfg.model = LazyCall(nn.Linear)(in_features=2, out_features="${.in_features}")
    cfg.train = dict(point=LazyCall(Point)(x=1), sizes=(1, 2))
    assert isinstance(cfg.model, DictConfig)
    assert cfg.model._target_ is nn.Linear
    assert instantiate(cfg.model).out_features == 2
    assert instantiate(cfg.train.point) == Point(1, 2)
    cfg.model._target_ = "torch.nn.Bilinear"
    cfg.model.update(in1_features=1, in2_features="${..train.sizes.1}")
    del cfg.model.in_features
    cfg.model.out_features = 3
    assert instantiate(cfg.model).in2_features == 2
    with pytest.raises(TypeError, match="cannot be called"):
        LazyCall(3)


def test_inner_nodes_refer_to_outer_ones_and_a_target_can_be_built():
    outer = LazyCall(dict)(rate=[1], inner=LazyCall(dict)(same="${..rate}"))
    assert instantiate(outer) == {"rate": [1], "inner": {"same": [1]}}
    outer.inner.same = [5]
    assert instantiate(outer)["inner"] == {"same": [5]}
    made = LazyCall(LazyCall(torch.nn.Flatten)(start_dim=0))(input=torch.zeros(2, 2))
    assert instantiate(made).shape == (4,)
    assert instantiate([1, LazyCall(double)(value=4)]) == [1, 8]
    assert instantiate({"_target_": double, "value": 3}) == 6
    thing = object()
    assert instantiate(thing) is thing


def test_a_relative_import_gives_a_section_of_its_own_each_time(tmp_path):
    (tmp_path / "common").mkdir()
    (tmp_path / "common" / "train.py").write_text("train = dict(x=1, inner=dict(y=2))\n")
    (tmp_path / "main.py").write_text(
        "from .common.train import train\n"
        "train.x = 5\n"
        "from .common.train import train as again\n"
        "def later():\n"
        "    from .common.train import train\n"
        "    return train.x\n"
        "found = dict(x=later())\n"
        "number = 3\n"
    )
    cfg = LazyConfig.load(str(tmp_path / "main.py"))
    assert cfg == {"train": {"x": 5, "inner": {"y": 2}}, "again": {"x": 1, "inner": {"y": 2}},
                   "found": {"x": 1}}  # fmt: skip
    assert LazyConfig.load(tmp_path / "main.py", "number") == 3
    with pytest.raises(ValueError, match="no config .*did you mean '.*main.py'"):
        LazyConfig.load(tmp_path / "mian.py")


@pytest.mark.row("L18")
def test_a_config_that_fails_leaves_imports_as_they_are(tmp_path):
    before = builtins.__import__
    (tmp_path / "bad.py").write_text("from .nothing import x\n")
    with pytest.raises(ImportError, match=r"from \.nothing import x.* needs a file"):
        LazyConfig.load(tmp_path / "bad.py")
    assert builtins.__import__ is before


def test_try_get_key_follows_dots_in_any_config():
    cfg = OmegaConf.create({"a": {"b": 0, "c": None}})
    assert try_get_key(cfg, "a.x", "a.b") == 0
    assert try_get_key(cfg, "a.b.c", "x.y", default=7) == 7
    assert try_get_key(cfg.a, "b") == 0
    assert try_get_key({"a": {"b": 1}}, "a.b") == 1


@pytest.mark.parametrize("target", ["os.system", "builtins.eval", "subprocess.run", "json.loads"])
def test_a_yaml_builds_only_what_the_list_names_however_it_is_passed_on(tmp_path, target):
    text = f"name: {target}\ndirect: {{_target_: {target}}}\nlisted: [{{_target_: '${{name}}'}}]\n"
    (tmp_path / "evil.yaml").write_text(text + "deep: {_target_: {_target_: json.loads}}\n")
    cfg = LazyConfig.load(tmp_path / "evil.yaml")
    assert cfg.direct._target_ == target
    merged = OmegaConf.merge({"x": 1}, cfg)
    inside = LazyCall(dict)(model=cfg.direct)
    for node in (
        cfg.direct,
        cfg.listed[0],
        cfg.deep,
        inside,
        merged.direct,
        copy.copy(cfg).direct,
        copy.deepcopy(cfg).direct,
        pickle.loads(pickle.dumps(cfg)).direct,
        OmegaConf.to_container(cfg, resolve=True)["direct"],
    ):
        with pytest.raises(UnknownNameError, match="may not be named by a YAML"):
            instantiate(node)


def test_a_yaml_builds_torch_its_own_modules_and_what_is_allowed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own_parts.py").write_text("def made(x): return x + 1\n")
    (tmp_path / "a.yaml").write_text(
        "layer: {_target_: torch.nn.Linear, in_features: 1, out_features: 2}\n"
        "own: {_target_: own_parts.made, x: 3}\n"
        "other: {_target_: json.loads, s: '[1]'}\n"
    )
    cfg = LazyConfig.load("a.yaml", allow=["json."])
    assert instantiate(cfg.layer).out_features == 2
    assert instantiate(cfg.own) == 4
    assert instantiate(cfg.other) == [1]
    with pytest.raises(UnknownNameError, match="pass allow= to LazyConfig.load with json"):
        instantiate(LazyConfig.load("a.yaml").other)
    (tmp_path / "tagged.yaml").write_text("x: !!python/name:os.system\n")
    with pytest.raises(Exception, match="could not determine a constructor"):
        LazyConfig.load("tagged.yaml")


def test_a_config_with_objects_is_shown_and_pickled(tmp_path, caplog):
    cfg = DictConfig({"loss": nn.MSELoss(), "x": 1}, flags={"allow_objects": True})
    with caplog.at_level(logging.WARNING, "libai"):
        LazyConfig.save(cfg, str(tmp_path / "c.yaml"))
    assert "the config has MSELoss()" in caplog.text
    assert LazyConfig.load(tmp_path / "c.yaml") == {"loss": "MSELoss()", "x": 1}
    assert (tmp_path / "c.yaml.pkl").is_file()


def test_a_config_is_shown_as_python():
    cfg = OmegaConf.create({"b": {"c": 1, "a": "x"}})
    cfg.node = LazyCall(double)(value={"long": list(range(20)), "text": "y" * 30})
    lines = LazyConfig.to_py(cfg).splitlines()
    assert lines[:2] == ['cfg.b.a = "x"', "cfg.b.c = 1"]
    assert lines[2].startswith("cfg.node = ")
    assert lines[2].endswith(".double(")
    assert lines[3].startswith("    value={")
    assert lines[-1] == ")"


def test_every_key_of_libais_defaults_is_accepted(tmp_path):
    cfg = config(tmp_path, rdma_enabled=True, nccl_fusion_threshold_mb=16, train_samples=None)
    cfg.train.dist = {"pipeline_num_layers": 8, "num_nodes": 1, "device_type": "cpu"}
    cfg.graph = get_config("common/models/graph.py").graph
    cfg.graph.auto_parallel.trunk_algo = False
    train = prepared(cfg)
    assert (train.samples, train.global_batch_size, train.dist.tensor_parallel_size) == (192, 16, 1)
    assert prepared(cfg) == train


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("graph.debug", 1, "set TORCH_LOGS"),
        ("graph.auto_parallel.enabled", True, "set train.dist instead"),
        ("graph.global_mode.enabled", True, "it belongs to OneFlow"),
        ("train.train_samples", 100, "set train.train_iter"),
    ],
)
def test_what_cannot_be_done_is_rejected_with_a_reason(tmp_path, path, value, message):
    cfg = config(tmp_path)
    OmegaConf.update(cfg, path, value, force_add=True)
    with pytest.raises(ValueError, match=f"{path} is {value}, expected .*{message}"):
        prepared(cfg)


def test_a_key_of_the_script_itself_is_reported_and_a_misspelled_one_rejected(tmp_path, caplog):
    cfg = config(tmp_path, dataset_type="blender")
    with caplog.at_level(logging.WARNING, "libai"):
        prepared(cfg)
    assert "the trainer does not use train.dataset_type" in caplog.text
    with pytest.raises(ValueError, match="did you mean 'enabled'"):
        prepared(config(tmp_path, amp={"enable": True}))


def test_parts_are_built_from_their_sections(tmp_path):
    cfg, model = config(tmp_path), Net()
    optimizer = build_optimizer(cfg.optim, model)
    assert {group["lr"] for group in optimizer.param_groups} == {0.01}
    assert "do_bias_correction" in cfg.optim  # the config stays as it is
    cfg.optim.do_bias_correction = False
    with pytest.raises(ValueError, match="do_bias_correction is False"):
        build_optimizer(cfg.optim, model)
    plain = LazyCall(torch.optim.SGD)(lr=1.0)
    assert len(build_optimizer(plain, model).param_groups) == 1
    node = LazyCall(WarmupCosineLR)(max_iter=4, warmup_factor=0.5, warmup_iter=0)
    assert build_lr_scheduler(node, optimizer).get_last_lr()[0] == 0.01
    prepared(cfg)
    assert isinstance(build_graph(cfg, model), GraphBase)
    with pytest.raises(TypeError, match="needs an optimizer"):
        build_graph(cfg, model, is_train=True)
    same = [{"params": [1, 2], "lr": 1}, {"params": [3], "lr": 1}, {"params": [1], "lr": 2}]
    assert reduce_param_groups(same) == [{"lr": 2, "params": [1]}, {"lr": 1, "params": [2, 3]}]


def test_rates_are_exactly_those_of_the_formula():
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=5.0)
    rate = WarmupPolynomialLR(optimizer, 30, 0.001, 0, end_learning_rate=1e-4)
    for step in range(30):
        assert optimizer.param_groups[0]["lr"] == (5.0 - 1e-4) * (1 - step / 30) + 1e-4
        optimizer.step()
        rate.step()
    again = WarmupPolynomialLR(optimizer, 30, 0.001, 0, end_learning_rate=1e-4)
    again.load_state_dict(rate.state_dict())
    assert again.get_lr() == rate.get_lr()


def test_a_function_is_configurable_too():
    @configurable(from_config=lambda cfg, b=1: {"a": cfg.a + b})
    def made(a, c=3):
        return a, c

    cfg = OmegaConf.create({"a": 1})
    assert (made(5), made(cfg), made(cfg, b=2, c=9)) == ((5, 3), (2, 3), (3, 9))
    with pytest.raises(TypeError, match="'cfg' as its first argument"):
        configurable(from_config=lambda other: {})(made)(cfg)
    with pytest.raises(TypeError, match="decorates __init__"):
        configurable(made)
