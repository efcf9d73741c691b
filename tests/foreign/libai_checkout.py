"""Tests over files of a LiBai checkout that are no tests: its configs, and scripts that train."""

import os
import runpy
import sys
from pathlib import Path

import pytest
from libai.config import LazyConfig, instantiate
from libai.engine.default import prepared
from omegaconf import DictConfig

ROOT = Path(os.environ["STOKER_FOREIGN_ROOT"])
CONFIGS = sorted(path.relative_to(ROOT).as_posix() for path in ROOT.glob("configs/**/*.py"))


@pytest.mark.parametrize("name", CONFIGS)
def test_a_shipped_config_loads(name, tmp_path):
    cfg = LazyConfig.load(ROOT / name)
    assert cfg
    assert all(isinstance(section, DictConfig) or section is None for section in cfg.values())
    assert LazyConfig.to_py(cfg)
    LazyConfig.save(cfg, tmp_path / "config.yaml")
    assert (tmp_path / "config.yaml").is_file()
    if "model" in cfg:
        assert instantiate(cfg.model) is not None
    if {"train", "graph", "optim", "dataloader"} <= cfg.keys():
        for kind in ("data", "tensor", "pipeline"):  # there is one process
            cfg.train.dist[f"{kind}_parallel_size"] = 1
        assert prepared(cfg).global_batch_size >= cfg.train.train_micro_batch_size


def test_the_script_that_trains_runs(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["test_trainer.py"])
    runpy.run_path(str(ROOT / "tests" / "test_trainer.py"), run_name="__main__")
    assert (tmp_path / "demo_output" / "last_checkpoint").read_text() == "model_final"
