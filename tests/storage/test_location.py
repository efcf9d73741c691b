"""Paths and URLs: what counts as local, and that every entry point rejects the rest at once."""

from pathlib import Path

import pytest

from stoker import Trainer, events, hooks
from stoker.checkpoint import Checkpoints
from stoker.cli import main
from stoker.core.errors import UnsupportedURLError
from stoker.report.output import write_report
from stoker.resume.weights import load_weights
from stoker.storage import local_path
from support.toys import loader, net, trainer

URL = "s3://bucket/run"
ERROR = f"object stores and other URLs are not supported yet: .* is '{URL}', expected a local path"


@pytest.fixture(autouse=True)
def in_empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    yield
    assert not list(tmp_path.glob("s3*"))


@pytest.mark.parametrize(
    "name",
    [
        "runs/a",
        "/tmp/a",
        "a:b",
        "exp: lr=1/2",
        "lr:/2",
        "C:/runs",
        "c:\\runs",
        "C://runs",
        "12:30",
        ":",
    ],
)
def test_plain_names_are_local_even_with_a_colon(name):
    assert local_path(name) == Path(name)
    assert local_path(Path(name)) == Path(name)


@pytest.mark.parametrize(
    "url",
    [
        *("s3://b/x", "gs://b", "az://c/x", "abfss://c@a/x", "hdfs://host:9000/x", "http://h/x"),
        *("https://h/x", "S3://b", "unknown+v2://x", "s3:/b/x", "file://elsewhere/x"),
    ],
)
def test_urls_are_rejected(url):
    with pytest.raises(UnsupportedURLError, match="the place is '"):
        local_path(url, "the place")


def test_urls_are_recognized_although_a_path_drops_a_slash():
    with pytest.raises(UnsupportedURLError, match="'s3:/bucket/run'"):
        local_path(Path(URL))


@pytest.mark.parametrize(
    "url", ["file:///tmp/a%20b", "file:/tmp/a%20b", "file://localhost/tmp/a b"]
)
def test_a_file_url_is_the_path_it_names(url):
    assert local_path(url) == Path("/tmp/a b")


def fit(**options):
    trainer().fit(loader(), epochs=1, **options)


ENTRY_POINTS = {
    "run_dir": lambda: trainer(run_dir=URL),
    "resume": lambda: fit(resume=URL),
    "Checkpoint": lambda: hooks.Checkpoint(folder=URL),
    "Checkpoints": lambda: Checkpoints(URL),
    "SaveWeights": lambda: hooks.SaveWeights(URL),
    "writer": lambda: events.JsonLines(URL),
    "save": lambda: trainer().save(URL),
    "load": lambda: trainer().load(URL),
    "load_weights": lambda: load_weights(net(), URL),
    "report of": lambda: write_report([URL], "report.html"),
    "report to": lambda: write_report([], f"{URL}"),
}


@pytest.mark.parametrize("call", ENTRY_POINTS.values(), ids=ENTRY_POINTS)
def test_every_entry_point_rejects_a_url(call):
    with pytest.raises(UnsupportedURLError, match=ERROR):
        call()


def test_a_trainer_with_a_url_resumes_nothing_and_writes_nothing(tmp_path):
    with pytest.raises(UnsupportedURLError, match=f"resume is '{URL}'"):
        Trainer(trainer().engine, run_dir="run").fit(loader(), epochs=1, resume=URL)
    assert not list(tmp_path.iterdir())


CONFIG = """
model: {type: torch.nn.Linear, in_features: 2, out_features: 1}
optimizer: {type: SGD, lr: 0.1}
"""

COMMANDS = [
    *(["ckpt", action, URL] for action in ("ls", "verify", "show", "prune")),
    ["ckpt", "diff", URL, URL],
    ["ckpt", "export", URL, "-o", "weights.pt"],
    ["ckpt", "export", "run", "-o", URL],
    ["ckpt", "import", URL, "-o", "weights.safetensors"],
    ["board", URL],
    ["report", URL],
    ["new", URL],
    ["train", "config.yaml", f"run.dir={URL}"],
    ["train", "config.yaml", "--resume", URL],
    ["train", "config.yaml", "--nproc", "2", f"run.dir={URL}"],
    ["predict", "config.yaml", "-o", f"{URL}"],
]


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_every_command_rejects_a_url_with_one_line(words, capsys, tmp_path):
    (tmp_path / "config.yaml").write_text(CONFIG)
    assert main(words) == 2
    lines = [line for line in capsys.readouterr().err.splitlines() if "not supported yet" in line]
    assert len(lines) == 1
    assert f"is '{URL}', expected a local path" in lines[0]
    assert {path.name for path in tmp_path.iterdir()} == {"config.yaml"}
