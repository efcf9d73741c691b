"""A run in a real notebook."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.process

EXECUTE = """
import json, sys
import nbformat
from nbclient import NotebookClient

cells = [nbformat.v4.new_code_cell(text) for text in sys.argv[1:]]
notebook = nbformat.v4.new_notebook(cells=cells)
NotebookClient(notebook, timeout=300, kernel_name="python3").execute()
print(json.dumps([[cell.outputs for cell in notebook.cells], notebook.metadata.get("widgets")]))
"""

TRAIN = """
import sys
{before}
from stoker import hooks
from support.toys import batches, trainer
trainer(hooks.Loss(), hooks.Progress()).fit(batches(2000, 1), batches(400, 1), epochs=2)
"""


def execute(*cells: str, where: Path | None = None) -> tuple[list[list[dict]], dict]:
    """What each cell shows when all is done, and the state of the widgets."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "PYTHONWARNINGS": "ignore"}
    command = [sys.executable, "-c", EXECUTE, *cells]
    done = subprocess.run(
        command, env=environment, cwd=where, check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    shown, widgets = json.loads(done.stdout.splitlines()[-1])
    return shown, widgets or {}


def html_of(shown: list[dict]) -> str:
    """The HTML of the last expression of a cell."""
    return next(one["data"]["text/html"] for one in shown if one["output_type"] == "execute_result")


def text_of(shown: list[dict]) -> str:
    return "".join(output["text"] for output in shown if output["output_type"] == "stream")


@pytest.mark.parametrize(
    ("before", "widgets"), [("", True), ("sys.modules['ipywidgets'] = None", False)]
)
def test_a_notebook_shows_a_line_per_epoch_and_a_bar_where_it_has_widgets(before, widgets):
    (shown,), _ = execute(TRAIN.format(before=before))
    lines = text_of(shown).splitlines()
    assert [line[:9] for line in lines] == ["epoch 1/2", "epoch 2/2"]
    drawn = [output for output in shown if output["output_type"] == "display_data"]
    assert bool(drawn) == widgets
    assert len(drawn) <= 2  # a bar is drawn over itself


SET_UP = """
import torch
from torch import nn
from stoker import Engine, Trainer, hooks
from support.toys import batches, loader
"""
RUN = """
torch.manual_seed(0)
model = nn.Linear(4, 3)
engine = Engine(model, torch.optim.SGD(model.parameters(), lr=0.1), nn.CrossEntropyLoss())
trainer = Trainer(engine, hooks.default(), run_dir="run", seed=0)
history = trainer.fit(loader(40), loader(20), epochs={epochs})
print(trainer.run.dir.name, len(history), [row["val/loss"] for row in history])
"""


@pytest.fixture(scope="module")
def notebook(tmp_path_factory):
    """One notebook for all that follows: starting a kernel takes seconds."""
    cells = [
        SET_UP,
        RUN.format(epochs=3),
        RUN.format(epochs=3),  # the same cell again
        RUN.replace("lr=0.1", "lr=0.2").format(epochs=3),  # an edited cell
        "history",
        "trainer.evaluate(loader(20))",
        "trainer.explain()",
        "print(trainer.explain())",
    ]
    return execute(*cells, where=tmp_path_factory.mktemp("notebook"))


def test_a_cell_that_runs_again_finds_its_finished_run(notebook):
    shown, _ = notebook
    first, again = (text_of(shown[at]).splitlines()[-1] for at in (1, 2))
    assert first.startswith("run 3 [")
    assert again == first
    assert "finished" in text_of(shown[2])


def test_an_edited_cell_is_a_new_run_in_a_folder_of_its_own(notebook):
    shown, _ = notebook
    edited = text_of(shown[3])
    assert edited.splitlines()[-1].startswith("run-2 3 [")
    assert edited.splitlines()[-1] != text_of(shown[1]).splitlines()[-1]


def test_results_have_tables_and_curves_without_scripts(notebook):
    shown, _ = notebook
    history, scores, explained = (html_of(shown[at]) for at in (4, 5, 6))
    assert history.count("<tr>") == 4
    assert "<svg" in history
    assert "val/loss" in scores
    assert explained.startswith("<pre")
    assert "before_epoch" in explained
    for html in (history, scores, explained):
        assert "<script" not in html
        assert "http" not in html


def test_explain_prints_as_text(notebook):
    shown, _ = notebook
    assert text_of(shown[7]).splitlines()[0] == "step: Step, schedule: PlainSchedule"


def test_a_curve_grows_where_the_notebook_has_widgets(notebook):
    _, widgets = notebook
    (states,) = widgets.values()
    values = [one["state"].get("value", "") for one in states["state"].values()]
    curves = [value for value in values if isinstance(value, str) and "<polyline" in value]
    assert len(curves) >= 2  # of the first run and of the edited one
    assert all("val/loss" in curve and "train/loss" in curve for curve in curves)
