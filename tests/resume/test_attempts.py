"""What two attempts at a run may differ in, and what a checkpoint says of where it came from."""

import json
import logging
from contextlib import nullcontext
from pathlib import Path

import pytest

from stoker import Trainer, hooks
from stoker.checkpoint import Checkpoints
from stoker.checkpoint.format.manifest import Manifest
from stoker.cli.main import main
from stoker.events import Csv, JsonLines
from stoker.events.writers.console import Console
from stoker.hooks import Callback
from support.killable_run import same
from support.project import project
from support.server import run
from support.toys import batches, engine

HALT = "so far"


def train(run_dir, *writers, until=None, accumulate=1, every="2st", **how):
    """Ten steps that are written down one by one; broken off after a step if told so."""

    def act(run):
        if run.step == until:
            raise RuntimeError(HALT)

    own = [
        hooks.Loss(), hooks.Write(*(writers or [JsonLines()]), every=1),
        hooks.Checkpoint(every), Callback(name="halt", after_step=act),
    ]  # fmt: skip
    made = Trainer(engine(), own, run_dir=run_dir, accumulate=accumulate)
    with pytest.raises(RuntimeError, match=HALT) if until is not None else nullcontext():
        made.fit(batches(), epochs=2, **how)
    return made


def info(run_dir):
    return Manifest.read(Checkpoints(run_dir / "checkpoints").list()[-1]).info


def written(path):
    lines = path.read_text().splitlines()
    if path.suffix == ".csv":
        return [int(line.split(",")[0]) for line in lines[1:]]
    return [json.loads(line)["step"] for line in lines]


@pytest.mark.slow
def test_a_run_with_a_path_as_origin_resumes_from_its_own_checkpoints(tmp_path):
    train(tmp_path / "first", until=5)
    there = tmp_path / "first" / "checkpoints" / "step-00000002"
    whole = train(tmp_path / "whole", resume=there)
    steps = []
    for until in (6, 9, None):
        made = train(tmp_path / "run", until=until, resume=there)
        steps.append(made.run.step)
        assert made.run.dir == tmp_path / "run"
    assert steps == [6, 9, 10]
    assert same(made.engine.state_dict(), whole.engine.state_dict())
    assert written(tmp_path / "run" / "metrics.jsonl") == [3, 4, 5, 6, 7, 8, 9, 10]
    assert info(tmp_path / "run")["origin"] == str(there)
    assert train(tmp_path / "run", resume="auto").run.dir == tmp_path / "run"


def test_a_run_from_another_path_is_another_run(tmp_path):
    train(tmp_path / "first")
    two, four = (tmp_path / "first" / "checkpoints" / f"step-0000000{n}" for n in (6, 8))
    assert train(tmp_path / "run", resume=two).run.dir == tmp_path / "run"
    assert train(tmp_path / "run", resume=four).run.dir == tmp_path / "run-2"
    assert train(tmp_path / "run", resume=two).run.dir == tmp_path / "run"


@pytest.mark.parametrize(
    "attempts",
    [
        [(JsonLines(), Csv()), (Csv(), JsonLines())],
        [(JsonLines(), Csv()), (Console(), Csv(), JsonLines())],
        [(JsonLines(), Csv()), (JsonLines(),), (JsonLines(), Csv())],
    ],
    ids=["another order", "one more", "one less for a while"],
)
def test_writers_may_change_between_attempts_and_no_row_is_doubled(tmp_path, attempts):
    *broken, last = attempts
    for until, writers in zip((5, 7), broken, strict=False):
        train(tmp_path / "run", *writers, until=until)
    train(tmp_path / "run", *last)
    assert written(tmp_path / "run" / "metrics.jsonl") == list(range(1, 11))
    rows = written(tmp_path / "run" / "metrics.csv")
    assert len(rows) == len(set(rows))
    assert rows[:4] + rows[-3:] == [1, 2, 3, 4, 8, 9, 10]


def test_a_writer_that_is_new_does_not_double_what_a_killed_attempt_wrote(tmp_path):
    train(tmp_path / "run", JsonLines(), until=4)
    train(tmp_path / "run", JsonLines(), Csv(), until=6, every=1000)
    train(tmp_path / "run", JsonLines(), Csv())
    rows = written(tmp_path / "run" / "metrics.csv")
    assert len(rows) == len(set(rows))


def test_another_accumulation_is_another_run(tmp_path, caplog):
    train(tmp_path / "run", until=4)
    with caplog.at_level(logging.WARNING):
        made = train(tmp_path / "run", accumulate=2)
    assert made.run.dir == tmp_path / "run-2"
    assert f"{tmp_path / 'run'} is another run: accumulate was 1 and is 2" in caplog.text


def test_a_checkpoint_has_the_digest_of_its_identity(tmp_path, monkeypatch, capsys):
    project(tmp_path, monkeypatch)
    digests = {}
    for name, more in {"a": ["run.epochs=1"], "b": ["run.epochs=2"], "c": ["run.seed=9"]}.items():
        assert main(["train", "cfg.yaml", f"run.name={name}", "run.epochs=1", *more]) == 0
        digests[name] = info(Path("runs") / name)["identity"]
    assert digests["a"] == digests["b"] != digests["c"]
    capsys.readouterr()
    assert main(["ckpt", "show", "runs/a"]) == 0
    assert f"identity {digests['a']}" in capsys.readouterr().out


def test_a_config_with_a_path_as_origin_continues_unless_it_is_changed(tmp_path, monkeypatch):
    project(tmp_path, monkeypatch)
    assert main(["train", "cfg.yaml", "run.name=first", "run.epochs=1"]) == 0
    words = ["train", "cfg.yaml", "run.name=run", "--resume", "runs/first"]
    for more in (["run.epochs=2"], ["run.epochs=3"], ["run.epochs=3", "run.accumulate=2"]):
        assert main([*words, *more]) == 0
    assert sorted(path.name for path in Path("runs").iterdir()) == ["first", "run", "run-2"]


@pytest.mark.slow
@pytest.mark.row("T12")
def test_tensorboard_that_is_not_installed_is_named():
    code = (
        "import sys; sys.modules['tensorboard'] = None\n"
        "from stoker.events import TensorBoard\n"
        "try: TensorBoard()\n"
        "except ImportError as error: print(error)"
    )
    said = run("-c", code, check=True)
    wanted = "the TensorBoard writer needs the package 'tensorboard': pip install 'stoker[tensorb"
    assert said.stdout.startswith(wanted)
