"""Trackers, the real ones: a run that is killed and goes on is one run there, each step once."""

import json
import math
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from stoker.events import MLflow, WandB, read_json_lines
from support.server import run

pytestmark = pytest.mark.process

SCRIPT = Path(__file__).parents[1] / "support" / "tracked_run.py"


def python(*arguments):
    where = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, *arguments]
    return subprocess.run(command, env=where, check=False, capture_output=True, text=True)


@pytest.fixture(scope="module")
def stores(tmp_path_factory):
    """What the stores hold of a run that was killed once, and what they should."""
    folder = tmp_path_factory.mktemp("tracked")
    where = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    killed = run(str(SCRIPT), str(folder), "8", env=where)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    done = run(str(SCRIPT), str(folder), env=where)
    assert done.returncode == 0, done.stderr
    assert "resuming from" in done.stderr
    wanted: dict = {}
    for row in read_json_lines(folder / "run" / "metrics.jsonl"):
        for name in row.keys() - {"step", "epoch", "samples", "time"}:
            wanted.setdefault(name, []).append([row["step"], row[name]])
    assert len(wanted["train/loss"]) > 5
    return json.loads(done.stdout.splitlines()[-1]), wanted


def same(one, other):
    return (math.isnan(one) and math.isnan(other)) or math.isclose(one, other, rel_tol=1e-6)


@pytest.mark.parametrize("tracker", ["WandB", "MLflow", "TensorBoard"])
def test_a_run_that_was_killed_is_one_run_there_with_each_number_once(stores, tracker):
    found, wanted = stores[0][tracker], dict(stores[1])
    if tracker == "MLflow":
        wanted["odd _name_"] = wanted.pop("odd <name>")
    assert found.keys() == wanted.keys()
    for name, points in wanted.items():
        assert [step for step, _ in found[name]] == [step for step, _ in points], name
        values = zip(found[name], points, strict=True)
        assert all(same(one[1], other[1]) for one, other in values), name


@pytest.mark.parametrize(("writer", "package"), [(WandB, "wandb"), (MLflow, "mlflow")])
def test_a_tracker_that_is_not_installed_is_named(writer, package, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ImportError, match=rf"pip install 'stoker\[{package}\]'"):
        writer()


def test_no_tracker_is_imported_before_it_writes():
    make = "from stoker import events; events.WandB(); events.MLflow()"
    brought = python("-c", f"{make}; import sys; print(*sys.modules)").stdout.split()
    assert "stoker.events.writers.wandb" in brought
    assert {"wandb", "mlflow"}.isdisjoint(brought)


def test_a_mode_that_wandb_has_not_is_refused():
    with pytest.raises(ValueError, match="mode must be 'online' or 'offline', got 'of'"):
        WandB(mode="of")
