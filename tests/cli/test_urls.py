"""Walk every command and public call that takes a path, with the URL of a run in a real store.

Each works, or is refused with one sentence; none takes a URL for the name of a folder.
"""

from argparse import ArgumentParser
from importlib import import_module

import pytest
import torch
from torch import nn

from stoker import Engine, Trainer, config, events, hooks, load_weights
from stoker.checkpoint import Checkpoints
from stoker.cli import board, main
from stoker.core.errors import UnsupportedURLError
from stoker.report.output import write_report
from stoker.testing import assert_resumes_exactly
from support.stores import BUCKET, S3Server, environment

pytestmark = [pytest.mark.process]

URL = f"s3://{BUCKET}/runs/project"
STEP = f"{URL}/checkpoints/step-00000063"
CONFIG = [URL, "--allow", "net."]
LOCAL = "expected a local path"

WORKS = {
    "train.config": ["train", *CONFIG, "run.dir=here"],
    "train.resume": ["train", "config.yaml", "--resume", STEP, "run.dir=here", "run.epochs=1"],
    "train.weights": ["train", "config.yaml", "--weights", f"{URL}/model.safetensors",
                      "--eval-only"],
    "evaluate.config": ["evaluate", *CONFIG],
    "evaluate.weights": ["evaluate", "config.yaml", "--weights", f"{URL}/model.safetensors"],
    "predict.config": ["predict", *CONFIG, "-o", "here.npz"],
    "predict.weights": ["predict", "config.yaml", "--weights", f"{URL}/model.safetensors",
                        "-o", "here.npz"],
    "explain.config": ["explain", *CONFIG],
    "lr-find.config": ["lr-find", *CONFIG, "-o", "here.png"],
    "profile.config": ["profile", *CONFIG, "--steps", "2", "-o", "here.json"],
    "config.config": ["config", *CONFIG],
    "status.runs": ["status", URL, f"s3://{BUCKET}/runs"],
    "wait.run": ["wait", URL],
    "report.runs": ["report", URL, "-o", "here.html"],
    "ckpt ls.path": ["ckpt", "ls", URL],
    "ckpt verify.path": ["ckpt", "verify", f"{URL}/checkpoints"],
    "ckpt show.path": ["ckpt", "show", STEP],
    "ckpt diff.first": ["ckpt", "diff", STEP, URL],
    "ckpt diff.second": ["ckpt", "diff", URL, STEP],
    "ckpt prune.path": ["ckpt", "prune", URL, "--dry-run"],
    "ckpt export.path": ["ckpt", "export", URL, "-o", "here.safetensors"],
}  # fmt: skip
REFUSED = {
    "predict.output": ["predict", "config.yaml", "-o", f"{URL}/out.npz"],
    "lr-find.output": ["lr-find", "config.yaml", "-o", f"{URL}/out.png"],
    "profile.output": ["profile", "config.yaml", "-o", f"{URL}/out.json"],
    "profile.trace": ["profile", "config.yaml", "--trace", f"{URL}/out.json"],
    "report.output": ["report", URL, "-o", f"{URL}/out.html"],
    "ckpt export.output": ["ckpt", "export", URL, "-o", f"{URL}/out.pt"],
    "ckpt import.file": ["ckpt", "import", f"{URL}/model.safetensors", "-o", "here.safetensors"],
    "ckpt import.output": ["ckpt", "import", "weights.pt", "-o", f"{URL}/out"],
    "new.folder": ["new", f"{URL}/new"],
    "run.script": ["run", f"{URL}/script.py"],
    "prove.config": ["prove", URL],
}
ELSEWHERE = {
    "board.runs",  # below
    "ckpt export.config",  # needs onnx, and is read as that of explain
    *(
        f"data {action}.{name}"
        for action in ("ls", "index", "check")
        for name in ("source", "cache")
    ),
}
"""Arguments that other tests pass: those of `stoker data` belong to streams."""


@pytest.fixture(scope="module", autouse=True)
def project(tmp_path_factory):
    server, folder = S3Server(), tmp_path_factory.mktemp("urls")
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environment(server.url).items():
            patch.setenv(name, value)
        patch.setenv("STOKER_CACHE", str(folder / "cache"))
        patch.chdir(folder)
        assert main(["new", "project", "-q"]) == 0
        patch.chdir("project")
        torch.save({"weight": torch.zeros(1)}, "weights.pt")
        assert main(["train", "config.yaml", f"run.dir=s3://{BUCKET}/runs", "run.epochs=1"]) == 0
        yield
    server.kill()
    assert not [*folder.rglob("s3:*")]


def is_path(action):
    return action.metavar in ("CFG", "PATH", "FILE", "RUN", "RUNS", "CKPT", "DIR", "A", "B", "HOW",
                              "SOURCE", "SCRIPT")  # fmt: skip


def path_arguments():
    """Return the arguments of all commands that take a path: "ckpt ls.path"."""
    found = set()
    for name, (module, _) in import_module("stoker.cli.main")._COMMANDS.items():
        parser = ArgumentParser()
        import_module(f"stoker.cli.{module}").add_arguments(parser)
        nested = next((a.choices for a in parser._actions if isinstance(a.choices, dict)), {})
        for prefix, one in [(name, parser), *((f"{name} {n}", p) for n, p in nested.items())]:
            found |= {f"{prefix}.{a.dest}" for a in one._actions if is_path(a)}
    return found


def test_the_walk_has_every_argument_that_takes_a_path():
    assert path_arguments() <= WORKS.keys() | REFUSED.keys() | ELSEWHERE


@pytest.mark.parametrize("words", WORKS.values(), ids=WORKS)
def test_what_reads_a_run_takes_its_url(words, capsys):
    assert main(words) == 0, capsys.readouterr().err


@pytest.mark.parametrize("words", REFUSED.values(), ids=REFUSED)
def test_what_writes_or_needs_a_local_file_refuses_a_url(words, capsys):
    assert main(words) == 2
    lines = [line for line in capsys.readouterr().err.splitlines() if URL in line]
    assert len(lines) == 1
    assert LOCAL in lines[0]


def test_the_board_shows_runs_in_a_store():
    root = board._root(f"s3://{BUCKET}/runs")
    assert (root / "project" / "metrics.jsonl").exists()
    assert board._root(URL).name == "project"


def trainer(**options):
    model = nn.Linear(2, 1)
    engine = Engine(model, torch.optim.SGD(model.parameters(), 0.1), nn.MSELoss())
    return Trainer(engine, [hooks.Checkpoint(None)], **options)


DATA = [(torch.ones(1, 2), torch.ones(1, 1))]
MINE = f"s3://{BUCKET}/runs/mine"


def test_python_calls_that_read_or_train_take_a_url(tmp_path):
    trainer(run_dir=MINE).fit(DATA, epochs=1)
    assert Checkpoints(f"{MINE}/checkpoints").newest().name == "step-00000001"
    other = trainer()
    other.load(MINE)
    other.load(f"{MINE}/checkpoints/step-00000001")
    assert other.run.step == 1
    third = trainer(run_dir=tmp_path / "third")
    third.fit(DATA, epochs=2, resume=MINE)
    assert third.run.step == 2
    assert not any(load_weights(nn.Linear(2, 1), MINE).values())
    write_report([MINE], tmp_path / "report.md")
    assert "mine" in (tmp_path / "report.md").read_text()


CALLS = {
    "trainer.save": lambda url: trainer().save(url),
    "Checkpoint": lambda url: hooks.Checkpoint(folder=url),
    "SaveWeights": lambda url: hooks.SaveWeights(f"{url}/model.safetensors"),
    "Profiler": lambda url: hooks.Profiler(path=url),
    "CostReport": lambda url: hooks.CostReport(path=url),
    "CostReport trace": lambda url: hooks.CostReport(trace=url),
    **{f"events.{kind}": getattr(events, kind) for kind in ("Csv", "JsonLines", "MLflow",
                                                            "TensorBoard", "WandB")},
    "write_report": lambda url: write_report([], f"{url}/report.md"),
    "config.load": lambda url: config.load(f"{url}/config.yaml"),
    "config.save": lambda url: config.load("config.yaml").save(f"{url}/config.yaml"),
    "read_json_lines": lambda url: events.read_json_lines(f"{url}/metrics.jsonl"),
    "assert_resumes_exactly": lambda url: assert_resumes_exactly(f"{url}/config.yaml"),
}  # fmt: skip


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_python_calls_that_need_a_local_path_refuse_a_url(call):
    with pytest.raises(UnsupportedURLError, match=f"is '{MINE}.*', {LOCAL}"):
        call(MINE)
