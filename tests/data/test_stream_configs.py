"""Streams in configs: a YAML describes the source, the steps and the batches."""

import json
import re

import pytest

from stoker import data
from stoker.build import build_job
from stoker.cli.main import main
from stoker.config import ConfigError, load
from support.stream_data import number_in, numbers, write_jsonl

STEPS = """
import torch

def number(record):
    return record["number"]

def is_odd(number):
    return number % 2

def as_batch(values):
    x = torch.tensor(values, dtype=torch.float32)[:, None] / 700
    return x, 2 * x
"""
CONFIG = """
model: {_target_: torch.nn.Linear, in_features: 1, out_features: 1}
optimizer: {type: SGD, lr: 0.1}
criterion: MSELoss
train_loader:
  type: pipeline
  stream: {_target_: stoker.data.stream, source: data, shuffle: 64, seed: 5}
  steps:
    - map: {_object_: steps.number}
    - filter: {_object_: steps.is_odd}
  batch_size: 16
  collate: {_object_: steps.as_batch}
run: {max_steps: 30, dir: runs, progress: false, checkpoint: {every: 5st}}
"""


@pytest.fixture
def config(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").mkdir()
    write_jsonl(tmp_path / "data")
    (tmp_path / "steps.py").write_text(STEPS)
    (tmp_path / "c.yaml").write_text(CONFIG)
    return tmp_path / "c.yaml"


def test_a_yaml_describes_the_stream_that_a_script_makes(config):
    job = build_job(load(config))
    expected = numbers("data").filter(lambda n: n % 2).batch(16)
    found = [(x[:, 0] * 700).round().int().tolist() for x, _ in job.train_loader]
    assert found == [batch.tolist() for batch in expected]


def test_a_yaml_with_a_stream_trains_resumes_and_is_explained(config, capsys):
    assert main(["train", str(config), "run.max_steps=12"]) == 0
    assert main(["train", str(config)]) == 0
    lines = (config.parent / "runs/c/metrics.jsonl").read_text().splitlines()
    steps = [json.loads(line).get("step") for line in lines]
    assert steps == sorted(steps)
    assert steps[-1] == 30
    assert [path.name for path in (config.parent / "runs").iterdir()] == ["c"]
    capsys.readouterr()
    assert main(["explain", str(config)]) == 0
    table = " ".join(capsys.readouterr().out.split())
    assert re.search(r"train Stream 700 unknown 3 jsonl files, [\d.]+ kB → map → filter", table)


def test_a_mixture_in_a_yaml_has_a_pipeline_for_each_stream(config):
    text = CONFIG.replace(
        "stream: {_target_: stoker.data.stream, source: data, shuffle: 64, seed: 5}\n  steps:\n"
        "    - map: {_object_: steps.number}",
        """stream:
    _target_: stoker.data.mix
    weights: [2, 1]
    until: 300
    streams:
      - _target_: stoker.data.pipeline
        stream: {_target_: stoker.data.stream, source: data, shuffle: 64, seed: 5}
        steps: [{map: {_object_: steps.number}}]
      - _target_: stoker.data.pipeline
        stream: {_target_: stoker.data.stream, source: data}
        steps: [{map: {_object_: steps.number}}]
  steps:""",
    )
    config.write_text(text)
    found = [x.shape[0] for x, _ in build_job(load(config)).train_loader]
    parts = [numbers("data"), data.stream("data").map(number_in)]
    expected = data.mix(parts, [2, 1], until=300).filter(lambda n: n % 2).batch(16)
    assert found == [len(batch) for batch in expected]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("seed: 5}", "seed: 5, cache: /elsewhere}", "'cache' is '/elsewhere', which a YAML"),
        ("- filter:", "- fliter:", r"steps\[1\] is 'fliter', expected one of map, filter, pack"),
        ("- filter: {_object_: steps.is_odd}", "- pack: {size: 3}", "size"),
        ("- filter: {_object_: steps.is_odd}", "- {pack: 3, map: 4}", "as its only key"),
        ("source: data", "source: nothing", "there is no 'nothing'"),
        ("  batch_size: 16\n", "", "collate is for batches: set batch_size"),
        ("{_object_: steps.is_odd}", "{_object_: os.remove}", "may not be named by a YAML"),
    ],
)
def test_what_is_wrong_in_a_stream_of_a_yaml_is_named(config, old, new, message):
    config.write_text(CONFIG.replace(old, new))
    with pytest.raises(ConfigError, match=message):
        build_job(load(config))


def test_the_size_of_batches_can_be_that_of_the_run(config):
    config.write_text(
        CONFIG.replace("  batch_size: 16\n", "").replace("run: {", "run: {micro_batch: 8, ")
    )
    x, _ = next(iter(build_job(load(config)).train_loader))
    assert len(x) == 8


@pytest.mark.parametrize("steps", ["map", "[map]"])
def test_a_step_without_a_function_is_rejected_and_not_suggested(config, steps):
    with pytest.raises(ConfigError, match="steps") as found:
        build_job(load(config, [f"train_loader.steps={steps}"]))
    assert "did you mean" not in str(found.value)
