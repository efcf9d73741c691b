"""A run in a real notebook."""

import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.process

EXECUTE = """
import json, sys
import nbformat
from nbclient import NotebookClient

notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(sys.argv[1])])
NotebookClient(notebook, timeout=300, kernel_name="python3").execute()
print(json.dumps(notebook.cells[0].outputs))
"""

TRAIN = """
import sys
{before}
from stoker import hooks
from support.toys import batches, trainer
trainer(hooks.Loss(), hooks.Progress()).fit(batches(2000, 1), batches(400, 1), epochs=2)
"""


def outputs(before: str) -> list[dict]:
    """What the cell shows when all is done."""
    import json

    where = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "PYTHONWARNINGS": "ignore"}
    command = [sys.executable, "-c", EXECUTE, TRAIN.format(before=before)]
    done = subprocess.run(command, env=where, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def text_of(shown: list[dict]) -> str:
    return "".join(output["text"] for output in shown if output["output_type"] == "stream")


@pytest.mark.parametrize(
    ("before", "widgets"), [("", True), ("sys.modules['ipywidgets'] = None", False)]
)
def test_a_notebook_shows_a_line_per_epoch_and_a_bar_where_it_has_widgets(before, widgets):
    shown = outputs(before)
    lines = text_of(shown).splitlines()
    assert [line[:9] for line in lines] == ["epoch 1/2", "epoch 2/2"]
    drawn = [output for output in shown if output["output_type"] == "display_data"]
    assert bool(drawn) == widgets
    assert len(drawn) <= 2  # a bar is drawn over itself
