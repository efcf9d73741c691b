"""The jobs of the cookbook run, reach what they should, and are shown as they are."""

import importlib.util
import re
import runpy
import signal
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import nbformat
import pytest
import torch
from nbclient import NotebookClient
from safetensors.torch import load_file

from stoker.events import read_json_lines
from support.server import Python

pytestmark = pytest.mark.process

ROOT = Path(__file__).parents[1]


def _load_cookbook() -> ModuleType:
    path = ROOT / "tests" / "foreign" / "cookbook.py"
    spec = importlib.util.spec_from_file_location("foreign_cookbook", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


cookbook = _load_cookbook()


@pytest.fixture(autouse=True)
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Run in an empty folder, on one thread."""
    monkeypatch.chdir(tmp_path)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def printed_by(job: str, capsys: pytest.CaptureFixture[str]) -> str:
    """Run a job and return what it printed."""
    runpy.run_path(str(cookbook.file_of(job)), run_name="__main__")
    return capsys.readouterr().out


def number(printed: str, name: str) -> float:
    found = re.search(rf"^{re.escape(name)}: (-?[\d.]+)", printed, flags=re.MULTILINE)
    assert found is not None, printed
    return float(found[1])


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_gpt2_learns_with_token_weights_in_bf16(capsys):
    printed = printed_by("gpt2", capsys)
    assert number(printed, "loss per token") < 3.7
    rows = read_json_lines("runs/gpt2/metrics.jsonl")
    assert rows[-1]["step"] == 36, "two batches are one step"


def test_augmented_digits_are_classified(capsys):
    assert number(printed_by("digits_augmented", capsys), "accuracy") > 0.9


def test_the_vae_learns_and_logs_both_losses(capsys):
    assert number(printed_by("vae", capsys), "negative ELBO") < 26
    last = read_json_lines("runs/vae/metrics.jsonl")[-1]
    assert last["val/loss"] == pytest.approx(last["val/kl"] + last["val/reconstruction"])


def test_the_policy_learns_to_balance_the_pole(capsys):
    assert number(printed_by("reinforce", capsys), "steps until the pole falls") > 80
    rows = read_json_lines("runs/reinforce/metrics.jsonl")
    assert next(row["train/length"] for row in rows if "train/length" in row) < 50


def test_each_task_is_measured_on_each_validation_set(capsys):
    noisy = number(printed_by("multi_task", capsys), "accuracy on noisy images")
    last = {}
    for row in read_json_lines("runs/multi_task/metrics.jsonl"):  # a row for each validation set
        last |= row
    assert last["val/noisy/digit/accuracy"] == pytest.approx(noisy, abs=1e-3)
    for head in ("digit", "parity"):
        assert last[f"val/noisy/{head}/accuracy"] < last[f"val/clean/{head}/accuracy"]
        assert last[f"val/clean/{head}/accuracy"] > 0.85


def test_each_fold_is_a_run(capsys, tmp_path):
    assert number(printed_by("k_fold", capsys), "accuracy") > 0.93
    assert {path.name for path in (tmp_path / "runs" / "k_fold").iterdir()} == set("01234")


def test_optuna_finds_a_good_trial_and_prunes_others(capsys, tmp_path, monkeypatch):
    import optuna

    studies = []
    make = optuna.create_study
    monkeypatch.setattr(optuna, "create_study", lambda **k: studies.append(make(**k)) or studies[0])
    assert number(printed_by("optuna_search", capsys), "best accuracy") > 0.88
    states = [trial.state.name for trial in studies[0].trials]
    assert len(states) == 8
    assert set(states) == {"COMPLETE", "PRUNED"}


def test_the_port_averages_weights_and_keeps_the_best(capsys, tmp_path):
    assert number(printed_by("lightning_port", capsys), "accuracy") > 0.9


def test_the_usual_callbacks_act(capsys, tmp_path):
    assert number(printed_by("callbacks", capsys), "accuracy") > 0.88
    rows = read_json_lines("runs/callbacks/metrics.jsonl")
    assert rows[-1]["epoch"] < 30, "it stopped early"
    assert {"lr", "grad_norm"} <= {name for row in rows for name in row}
    assert (tmp_path / "runs" / "callbacks" / "metrics.csv").exists()


KILL = """
import os, runpy, signal, sys
import torch
from stoker import Hook, hooks

torch.set_num_threads(1)

class Kill(Hook):
    observes = True
    def after_step(self, run):
        if run.step == 120 and not os.path.exists("killed"):
            open("killed", "w").close()
            os.kill(os.getpid(), signal.SIGKILL)

default = hooks.default
hooks.default = lambda **options: [*default(**options), Kill()]
runpy.run_path(sys.argv[1], run_name="__main__")
"""


def test_a_killed_stream_ends_at_the_same_bits(capsys, tmp_path):
    assert number(printed_by("streaming", capsys), "accuracy") > 0.85
    folder, script = tmp_path / "killed", str(cookbook.file_of("streaming"))
    folder.mkdir()
    (folder / "kill.py").write_text(KILL)
    killed = Python(str(folder / "kill.py"), script, cwd=folder)
    killed.communicate()
    assert killed.returncode == -signal.SIGKILL
    resumed = Python(str(folder / "kill.py"), script, cwd=folder)
    _, errors = resumed.communicate()
    assert resumed.returncode == 0, errors
    assert "reading and discarding the first 100" in errors
    runs = [path / "runs" / "streaming" for path in (tmp_path, folder)]
    straight, again = (load_file(run / "model.safetensors") for run in runs)
    assert all(straight[name].equal(again[name]) for name in straight)
    straight, again = (untimed(read_json_lines(run / "metrics.jsonl")) for run in runs)
    assert straight == again


def untimed(rows: list[dict[str, float]]) -> list[dict[str, float]]:
    return [{name: one for name, one in row.items() if "time" not in name} for row in rows]


def test_a_notebook_cell_that_runs_twice_trains_once(tmp_path):
    notebook = nbformat.read(cookbook.file_of("notebook"), as_version=4)
    notebook.cells.insert(3, notebook.cells[2].copy())
    resources = {"metadata": {"path": str(tmp_path)}}
    NotebookClient(notebook, timeout=300, resources=resources).execute()
    first, second, last = (str(cell.outputs) for cell in notebook.cells[2:])
    assert "<svg" in first
    assert "epoch 10/10" in first
    assert "already finished" in second
    assert number(re.sub(r"\\n", "\n", last).partition("'text': '")[2], "accuracy") > 0.85


@pytest.mark.parametrize("page", cookbook.PAGES, ids=lambda page: page.stem)
def test_the_pages_show_the_files_as_they_are(page):
    text = page.read_text("utf-8")
    assert cookbook.with_generated_parts(text) == text, "python tests/foreign/cookbook.py --pages"


@pytest.mark.parametrize("job", cookbook.TITLES)
def test_a_job_needs_no_more_lines_than_with_another_trainer(job):
    others = [path for one in cookbook.TRAINERS if (path := cookbook.file_of(job, one))]
    assert cookbook.count_lines(cookbook.file_of(job)) <= min(map(cookbook.count_lines, others))


def test_every_job_is_on_a_page_with_its_result():
    text = "".join(page.read_text("utf-8") for page in cookbook.PAGES)
    results = cookbook.known_results()
    for path in (ROOT / "examples" / "cookbook").iterdir():
        assert f"<!-- generated: {path.stem} -->" in text
        assert results[path.stem].keys() == {
            one for one in cookbook.ENVIRONMENTS if cookbook.file_of(path.stem, one)
        }


def test_lines_are_counted_without_blanks_comments_and_docstrings(tmp_path):
    script = tmp_path / "one.py"
    script.write_text('"""Doc\nstring."""\n\n# why\nx = [\n    1,\n]\n\ndef f():\n    "Doc."\n')
    assert cookbook.count_lines(script) == 2
