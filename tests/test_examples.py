"""The examples run unchanged, and `make` starts as documented."""

import ast
import math
import os
import pydoc_data.topics
import re
import runpy
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeAlias

import pytest
import torch

from stoker import Run, hooks
from stoker.events import read_json_lines

pytestmark = pytest.mark.process

ROOT = Path(__file__).parents[1]
EXAMPLES = sorted(
    path for path in (ROOT / "examples").glob("*.py") if not path.stem.endswith("_config")
)
TRAINED = ["digits", "gan", "char_transformer", "tabular", "finetune"]

Example: TypeAlias = Callable[..., str]


@pytest.fixture
def example(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Example]:
    """Run an example in an empty folder and return what it printed."""

    def run(name: str, *arguments: str) -> str:
        path = ROOT / "examples" / f"{name}.py"
        monkeypatch.setattr(sys, "argv", [str(path), *arguments])
        runpy.run_path(str(path), run_name="__main__")
        return capsys.readouterr().out

    monkeypatch.chdir(tmp_path)
    threads, files = torch.get_num_threads(), _files_of_the_repository()
    torch.set_num_threads(1)
    yield run
    torch.set_num_threads(threads)
    assert _files_of_the_repository() == files


@pytest.fixture
def short_text(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use a sixth of the text that the transformer reads, to save time."""
    names = sorted(pydoc_data.topics.topics)[::6]
    some = {name: pydoc_data.topics.topics[name] for name in names}
    monkeypatch.setattr(pydoc_data.topics, "topics", some)


def test_digits_are_classified_after_a_few_epochs(example: Example, tmp_path: Path) -> None:
    printed = example("digits", "--epochs", "5")
    assert number_after("held-out accuracy:", printed) > 97.0
    assert "losses, log and weights are in runs/digits\n" in printed
    folder = tmp_path / "runs" / "digits"
    assert {"log.txt", "metrics.jsonl", "model.safetensors"} <= names_in(folder)
    losses = series("train/loss", folder)
    assert losses[-1] < losses[0] / 4


def test_digits_run_alone_from_an_empty_folder(tmp_path: Path) -> None:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
    done = subprocess.run(
        [sys.executable, "-W", "error", str(ROOT / "examples" / "digits.py"), "--epochs", "1"],
        cwd=tmp_path,
        env=environment | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert number_after("held-out accuracy:", done.stdout) > 80.0
    assert "epoch 1/1" in done.stderr
    assert names_in(tmp_path / "runs") == {"digits"}


def test_a_second_run_with_more_epochs_continues(example: Example, tmp_path: Path) -> None:
    example("tabular", "--epochs", "1")
    first = (tmp_path / "runs" / "tabular" / "metrics.jsonl").read_bytes()
    example("tabular", "--epochs", "2")
    both = (tmp_path / "runs" / "tabular" / "metrics.jsonl").read_bytes()
    assert both.startswith(first)
    assert len(both) > len(first)


def test_the_gan_counts_two_updates_as_one_step_and_logs_both_losses(
    example: Example, tmp_path: Path
) -> None:
    printed = example("gan", "--epochs", "4")
    batches = 1797 // 64
    assert f"after {4 * batches} steps of two updates each" in printed
    for name in ("train/generator_loss", "train/critic_loss"):
        assert all(math.isfinite(loss) for loss in series(name, tmp_path / "runs" / "gan"))
    drawing = printed.splitlines()[:16]
    assert {len(line) for line in drawing} == {80}
    assert len(set("".join(drawing))) > 5, "ten images with shades"


@pytest.mark.usefixtures("short_text")
def test_the_transformer_learns_and_its_rate_warms_up_and_falls(
    example: Example, tmp_path: Path
) -> None:
    printed = example("char_transformer", "--epochs", "3")
    loss = number_after("held-out loss per character:", printed)
    assert 1.0 < loss < number_after("guessing blindly:", printed) - 1.5
    assert printed.startswith("The ")
    assert len(printed) > 400
    rates = series("lr", tmp_path / "runs" / "char_transformer")
    assert max(rates) == pytest.approx(5e-3, rel=0.2)
    assert rates[-1] < 1e-4


def test_tabular_stops_early_keeps_the_best_and_beats_the_mean(
    example: Example, tmp_path: Path
) -> None:
    printed = example("tabular")
    assert "early stopping: val/loss has not improved in 20 evaluations" in printed
    steps = number_after("the weights are those of step", printed)
    rows = read_json_lines(tmp_path / "runs" / "tabular" / "metrics.jsonl")
    best = min((row for row in rows if "val/loss" in row), key=lambda row: row["val/loss"])
    assert steps == best["step"]
    assert number_after("held-out patients:", printed) > 0.3
    assert number_after("predicting the mean:", printed) <= 0.0


def test_fine_tuning_does_not_change_frozen_layers(example: Example) -> None:
    printed = example("finetune", "--epochs", "3")
    assert "frozen layers: conv1, norm1, conv2, norm2\n" in printed
    assert "changed below the head: nothing\n" in printed
    assert number_after("digits 5 to 9, head alone: held-out accuracy", printed) > 85.0


def test_a_custom_loop_needs_only_an_engine(example: Example, tmp_path: Path) -> None:
    printed = example("own_loop", "--epochs", "4")
    losses = [float(loss) for loss in re.findall(r"loss (\S+)", printed)]
    assert losses[-1] < losses[0] / 2
    accuracies = [float(share) for share in re.findall(r"accuracy (\S+)%", printed)]
    assert accuracies[-1] > 90.0
    assert names_in(tmp_path / "runs" / "own_loop") == {"model.safetensors"}


@pytest.mark.usefixtures("short_text")
@pytest.mark.parametrize("name", TRAINED)
def test_a_fast_dev_run_reaches_the_last_line(name: str, example: Example) -> None:
    assert example(name, "--fast-dev-run").strip()


@pytest.mark.usefixtures("short_text")
@pytest.mark.parametrize("name", TRAINED)
def test_a_fast_dev_run_writes_nothing(name: str, example: Example, tmp_path: Path) -> None:
    example(name, "--fast-dev-run")
    assert names_in(tmp_path) == set()


@pytest.mark.usefixtures("short_text")
@pytest.mark.parametrize("name", TRAINED)
def test_an_interrupted_example_still_ends_with_its_results(
    name: str, example: Example, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def press_ctrl_c(hook: hooks.Hook, run: Run) -> None:
        if run.step == 3:
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(hooks.Loss, "before_step", press_ctrl_c)
    printed = example(name)
    assert printed.strip()
    logs = [path.read_text("utf-8") for path in tmp_path.rglob("log.txt")]
    assert logs
    assert all("interrupted by Ctrl-C (step 4)" in log for log in logs)


def test_every_example_is_run_here() -> None:
    source = Path(__file__).read_text("utf-8")
    missing = [path.stem for path in EXAMPLES if f'example("{path.stem}"' not in source]
    assert not missing


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_commands_that_an_example_names_exist(path: Path) -> None:
    commands = re.findall(r"python examples/(\w+)\.py([^\n\"(]*)", path.read_text("utf-8"))
    assert commands
    for name, arguments in commands:
        taken = (ROOT / "examples" / f"{name}.py").read_text("utf-8")
        for option in re.findall(r"--[\w-]+", arguments):
            assert f'add_argument("{option}"' in taken


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_is_short_and_opens_with_what_it_shows(path: Path) -> None:
    source = path.read_text("utf-8")
    assert f"python examples/{path.name}" in (ast.get_docstring(ast.parse(source)) or "")
    assert len(source.splitlines()) <= 100


@pytest.mark.skipif(shutil.which("make") is None, reason="needs make")
def test_make_alone_lists_its_targets() -> None:
    done = subprocess.run(["make"], cwd=ROOT, capture_output=True, text=True, check=True)
    listed = re.findall(r"^make ([\w-]+)", done.stdout, re.M)
    targets = re.search(r"^\.PHONY: ((?:.*\\\n)*.*)$", (ROOT / "Makefile").read_text(), re.M)
    steps = {"help", "lint", "style", "types", "unit", "same-python"}  # of other targets
    assert sorted(listed) == sorted({*targets[1].replace("\\", " ").split()} - steps)


@pytest.mark.skipif(shutil.which("make") is None, reason="needs make")
@pytest.mark.parametrize("target", ["train", "test", "bench"])
def test_make_rejects_an_old_python_before_it_creates_anything(target: str, tmp_path: Path) -> None:
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path)
    old = tmp_path / "python3.10"
    pretend = "import sys; sys.version_info = (3, 10, 13); exec(sys.argv[1])"
    old.write_text(f"#!/bin/sh\nexec '{sys.executable}' -c '{pretend}' \"$2\"\n")
    old.chmod(0o755)
    before = names_in(tmp_path)
    done = subprocess.run(
        ["make", target, f"PYTHON={old}"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode != 0
    assert f"Stoker needs Python 3.11 or newer, but {old} is 3.10" in done.stderr
    assert names_in(tmp_path) == before


def number_after(label: str, text: str) -> float:
    found = re.search(re.escape(label) + r"\s*(-?[\d.]+)", text)
    assert found, f"{label!r} is not in {text!r}"
    return float(found[1])


def series(name: str, folder: Path) -> list[float]:
    found = [row[name] for row in read_json_lines(folder / "metrics.jsonl") if name in row]
    assert found, f"{name} was never written"
    return found


def names_in(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def _files_of_the_repository() -> set[Path]:
    """Return the files in the folders where an example could leave something behind."""
    seen = {*(ROOT / "examples").iterdir(), *(ROOT / "runs").rglob("*")}
    return {path for path in seen if path.name != "__pycache__"}
