"""The configs of the examples train, with the same results as the scripts."""

import pydoc_data.topics
import re
import runpy
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeAlias

import pytest
import torch

from stoker.cli import main
from stoker.config import load
from stoker.events import read_json_lines

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "examples"
CONFIGS = sorted([*FOLDER.glob("*.yaml"), *FOLDER.glob("*_config.py")])
SCRIPTS = {
    "digits": "digits.yaml",
    "gan": "gan_config.py",
    "char_transformer": "char_transformer.yaml",
    "tabular": "tabular.yaml",
    "own_loop": "own_loop_config.py",
}

Stoker: TypeAlias = Callable[..., int]

each_config = pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.name)


@pytest.fixture
def stoker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stoker]:
    """Run the command line in an empty folder, and forget modules imported from the examples."""
    modules, threads = set(sys.modules), torch.get_num_threads()
    monkeypatch.chdir(tmp_path)
    torch.set_num_threads(1)
    yield lambda *arguments: main([str(argument) for argument in arguments])
    torch.set_num_threads(threads)
    for name in set(sys.modules) - modules:
        if str(FOLDER) in (getattr(sys.modules[name], "__file__", None) or ""):
            del sys.modules[name]


@pytest.fixture
def short_text(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use a sixth of the text that the transformer reads, to save time."""
    names = sorted(pydoc_data.topics.topics)[::6]
    some = {name: pydoc_data.topics.topics[name] for name in names}
    monkeypatch.setattr(pydoc_data.topics, "topics", some)


@pytest.fixture
def pretrained(stoker: Stoker) -> None:
    """Train the weights that fine-tuning starts from."""
    assert stoker("train", FOLDER / "pretrain.yaml", "run.max_steps=1") == 0


def test_every_example_has_a_config() -> None:
    scripts = {path.stem for path in FOLDER.glob("*.py") if path not in CONFIGS}
    assert scripts == {*SCRIPTS, "finetune"}
    assert {path.name for path in CONFIGS} == {*SCRIPTS.values(), "pretrain.yaml", "finetune.yaml"}


@each_config
@pytest.mark.usefixtures("pretrained", "short_text")
def test_a_config_trains_and_leaves_a_run_folder(
    path: Path, stoker: Stoker, tmp_path: Path
) -> None:
    done = stoker("train", path, "run.max_steps=3", f"run.dir={tmp_path / 'few'}")
    assert done == 0
    (folder,) = (tmp_path / "few").iterdir()
    names = {file.name for file in folder.iterdir()}
    assert {"config.yaml", "env.json", "log.txt", "metrics.jsonl", "model.safetensors"} <= names
    assert read_json_lines(folder / "metrics.jsonl")[-1]["step"] == 3


@each_config
@pytest.mark.usefixtures("pretrained", "short_text")
def test_a_config_is_explained_without_training(
    path: Path, stoker: Stoker, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = set(tmp_path.rglob("*"))
    assert stoker("explain", path) == 0
    printed = capsys.readouterr().out
    assert "steps in total" in printed
    assert "conflict" not in printed
    assert set(tmp_path.rglob("*")) == before


@each_config
@pytest.mark.usefixtures("pretrained", "short_text")
def test_the_config_that_a_run_saves_is_equal_to_its_origin(
    path: Path, stoker: Stoker, tmp_path: Path
) -> None:
    assert stoker("train", path, "run.max_steps=1", "run.name=saved") == 0
    saved = load(tmp_path / "runs" / "saved")
    assert saved.tree == load(path, ["run.max_steps=1", "run.name=saved"]).resolved()


@pytest.mark.usefixtures("short_text")
@pytest.mark.parametrize("name", SCRIPTS)
def test_script_and_config_end_at_the_same_bits(
    name: str, stoker: Stoker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    epochs = 1 if name == "char_transformer" else 2
    script = FOLDER / f"{name}.py"
    monkeypatch.setattr(sys, "argv", [str(script), "--epochs", str(epochs)])
    runpy.run_path(str(script), run_name="__main__")
    assert stoker("train", FOLDER / SCRIPTS[name], f"run.epochs={epochs}", "run.dir=other") == 0
    from safetensors.torch import load_file

    by_script = load_file(tmp_path / "runs" / name / "model.safetensors")
    by_config = load_file(tmp_path / "other" / name / "model.safetensors")
    assert by_config.keys() == by_script.keys()
    assert all(by_config[key].equal(by_script[key]) for key in by_script)


def test_the_configs_of_fine_tuning_do_what_the_script_does(
    stoker: Stoker, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert stoker("train", FOLDER / "pretrain.yaml", "run.epochs=3") == 0
    assert stoker("train", FOLDER / "finetune.yaml", "run.epochs=3") == 0
    capsys.readouterr()
    assert stoker("evaluate", FOLDER / "finetune.yaml") == 0
    assert number_after("val/accuracy", capsys.readouterr().out) > 0.85
    before, after = (weights(tmp_path / "runs" / name) for name in ("pretrain", "finetune"))
    changed = {name for name in before if not before[name].equal(after[name])}
    assert changed == {"head.weight", "head.bias"}


def test_digits_by_config_reach_what_the_script_reaches(
    stoker: Stoker, capsys: pytest.CaptureFixture[str]
) -> None:
    assert stoker("train", FOLDER / "digits.yaml", "run.epochs=5") == 0
    capsys.readouterr()
    assert stoker("evaluate", FOLDER / "digits.yaml") == 0
    assert number_after("val/accuracy", capsys.readouterr().out) > 0.97


def test_the_gan_draws_ten_digits_by_config(
    stoker: Stoker, capsys: pytest.CaptureFixture[str]
) -> None:
    assert stoker("train", FOLDER / "gan_config.py", "run.epochs=1") == 0
    assert stoker("predict", FOLDER / "gan_config.py", "-o", "drawn.npz") == 0
    assert "drawn.npz: output [10, 64]" in capsys.readouterr().out


@each_config
def test_commands_that_a_config_names_are_of_configs_that_exist(path: Path) -> None:
    commands = re.findall(r"stoker [\w-]+ examples/([\w.]+)([^\n]*)", path.read_text("utf-8"))
    assert path.name in {name for name, _ in commands}
    for name, rest in commands:
        overrides = [argument for argument in rest.split() if "=" in argument]
        load(FOLDER / name, overrides).check()


def weights(folder: Path) -> dict[str, torch.Tensor]:
    from safetensors.torch import load_file

    return load_file(folder / "model.safetensors")


def number_after(label: str, text: str) -> float:
    found = re.search(re.escape(label) + r"\s*(-?[\d.]+)", text)
    assert found, f"{label!r} is not in {text!r}"
    return float(found[1])
