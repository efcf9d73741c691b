"""The examples of the four pages, made to run: by import rename, and as they are."""

import json
import os
import re
import runpy
import sys
from pathlib import Path

import pytest

from support.dialect_scripts import SCRIPTS, renamed
from support.server import run

pytestmark = pytest.mark.process

ENDS = {
    "libai_train_net.py": "iter 120 of 120 accuracy True",
    "orca_callbacks.py": "epochs 2 same True",
    "towhee_tour.py": "epoch 3 steps 2",
}
"""The last line that each script prints."""

MAPPED = {
    "colossalai_dicts.py": [
        ("LossHook", "after_test_iter at after_val_step"),
        ("LossHook", "before_test at before_val"),
        ("NormHook", "after_train_iter at after_step"),
        ("LogMetricByEpochHook", "after_test_epoch at after_val"),
        ("SaveCheckpointHook", "stoker.hooks.Checkpoint"),
        ("TensorboardHook", "after_train at after_train"),
    ],
    "libai_train_net.py": [
        ("InfoHook", "before_train at before_train"),
        ("IterationTimer", "after_step at after_step"),
        ("PeriodicCheckpointer", "stoker.hooks.Checkpoint"),
        ("PeriodicWriter", "stoker.hooks.Write"),
        ("MyEagerTrainer", "the step"),
    ],
    "orca_callbacks.py": [
        ("Points", "before_val_iter at before_val_step"),
        ("General", "on_iter_end at after_step, after_val_step, after_predict_step"),
        ("MainCallback", "the step"),
    ],
    "towhee_tour.py": [
        ("EarlyStoppingCallback", "on_eval_end at after_val"),
        ("ModelCheckpointCallback", "on_epoch_end at after_epoch"),
        ("PrintCallBack", "on_train_batch_end at after_step"),
        ("TensorBoardCallBack", "stoker.hooks.Write"),
    ],
}
"""What `stoker run --explain` says of the hooks in each script."""

TOGETHER = """
import contextlib, io, json, os, sys, traceback
from stoker.cli import main
found = {}
for key, (folder, words) in json.loads(sys.argv[1]).items():
    os.makedirs(folder)
    os.chdir(folder)
    out = io.StringIO()
    code = 0
    with contextlib.redirect_stdout(out):
        try:
            code = main(["run", *words])
        except SystemExit as end:
            code = end.code or 0
        except Exception:
            code = traceback.format_exc()
    found[key] = (code, out.getvalue())
print(json.dumps(found))
"""
"""Runs several scripts as `stoker run` does, one after another in one process."""


@pytest.fixture(scope="module")
def as_they_are(tmp_path_factory):
    """What `stoker run`, and after all of them `stoker run --explain`, gave for each script."""
    folder = tmp_path_factory.mktemp("scripts")
    runs = {name: (str(folder / name), [str(SCRIPTS / name)]) for name in ENDS}
    for name in MAPPED:
        explained = ["--explain", str(SCRIPTS / name)]
        runs[f"explain {name}"] = (str(folder / "explained" / name), explained)
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2] / "src")}
    done = run("-c", TOGETHER, json.dumps(runs), env={**env, "OMP_NUM_THREADS": "1"}, check=True)
    return json.loads(done.stdout)


@pytest.mark.parametrize("script", ENDS)
def test_the_example_of_a_page_runs_by_import_rename(script, tmp_path, monkeypatch, capsys):
    file = renamed(script, tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [str(file)])
    monkeypatch.syspath_prepend(str(SCRIPTS))  # for what stands in for timm
    monkeypatch.syspath_prepend(str(tmp_path))
    try:
        runpy.run_path(str(file), run_name="__main__")
    finally:
        for name in {"timm", *(path.stem for path in tmp_path.glob("*.py"))}:
            sys.modules.pop(name, None)
    assert capsys.readouterr().out.splitlines()[-1] == ENDS[script]


@pytest.mark.parametrize("script", ENDS)
def test_the_example_of_a_page_runs_as_it_is(script, as_they_are):
    code, out = as_they_are[script]
    assert code == 0, code
    assert out.splitlines()[-1] == ENDS[script]


@pytest.mark.parametrize("script", MAPPED)
def test_what_the_hooks_of_a_script_were_mapped_to_is_shown(script, as_they_are):
    code, out = as_they_are[f"explain {script}"]
    assert code == 0, code
    for name, how in MAPPED[script]:
        assert re.search(rf"^ *{name} +.*{re.escape(how)}(,|;|$)", out, re.MULTILINE), (
            name,
            how,
            out,
        )
    assert "after_step" in out.partition("Hooks of the script")[0]
