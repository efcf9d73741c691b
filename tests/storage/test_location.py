"""Paths and URLs: what counts as local, and that every entry point rejects the rest at once."""

from pathlib import Path

import pytest

from stoker import events, hooks
from stoker.checkpoint import Checkpoints
from stoker.cli import main
from stoker.config import ConfigError, load
from stoker.core.errors import UnsupportedURLError
from stoker.report.output import write_report
from stoker.resume.weights import load_weights
from stoker.storage import display, local_path, store_url, url_of, working_folder
from support.toys import loader, net, trainer

URL = "s3://bucket/run"
OTHER = "hdfs://host/run"


@pytest.fixture(autouse=True)
def in_empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    yield
    assert not [*tmp_path.glob("s3*"), *tmp_path.glob("hdfs*")]


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


READING = {
    "run_dir": lambda url: trainer(run_dir=url),
    "resume": lambda url: fit(resume=url),
    "Checkpoints": Checkpoints,
    "load": lambda url: trainer().load(url),
    "load_weights": lambda url: load_weights(net(), url),
    "report of": lambda url: write_report([url], "report.html"),
}
LOCAL = {
    "Checkpoint": lambda url: hooks.Checkpoint(folder=url),
    "SaveWeights": hooks.SaveWeights,
    "writer": events.JsonLines,
    "save": lambda url: trainer().save(url),
    "report to": lambda url: write_report([], f"{url}"),
}


@pytest.mark.parametrize("call", READING.values(), ids=READING)
def test_what_may_be_in_a_store_rejects_other_urls(call):
    with pytest.raises(UnsupportedURLError, match=f"is '{OTHER}', expected a local path or a URL"):
        call(OTHER)


@pytest.mark.parametrize("url", [URL, OTHER])
@pytest.mark.parametrize("call", LOCAL.values(), ids=LOCAL)
def test_what_must_be_local_rejects_every_url(call, url):
    with pytest.raises(UnsupportedURLError, match=f"is '{url}', expected a local path$"):
        call(url)


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("s3a://b/x", "did you mean 's3://'?"),
        ("abfss://c/x", "did you mean 'az://'?"),
        ("s3://", "expected a bucket and a path"),
        ("s3://b/../c", "without empty parts"),
        ("s3://b//c", "without empty parts"),
        ("s3://key:hidden@b/x", "set them in the environment"),
        ("az://c/x?sig=hidden", "set them in the environment"),
    ],
)
def test_a_url_that_no_store_can_have_is_refused_without_its_secrets(url, message):
    with pytest.raises(UnsupportedURLError) as caught:
        store_url(url, "run_dir")
    assert message in str(caught.value)
    assert "hidden" not in str(caught.value)


def test_a_url_leads_to_a_folder_of_the_cache_and_back(monkeypatch, tmp_path):
    monkeypatch.setenv("STOKER_CACHE", str(tmp_path))
    monkeypatch.delenv("AWS_ENDPOINT_URL", raising=False)
    assert store_url(Path(URL)) == store_url(f"{URL}/") == URL
    first = working_folder(URL)
    assert first == tmp_path / "runs/s3/bucket/run"
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://user:hidden@localhost:9000")
    second = working_folder(URL)  # a bucket of the same name on another server
    assert second == tmp_path / "runs/s3@localhost_9000/bucket/run"
    assert url_of(first) == url_of(second) == display(second) == URL
    assert url_of(first / "checkpoints") == f"{URL}/checkpoints"
    assert url_of(tmp_path / "elsewhere") is None
    assert working_folder("runs/a") == Path("runs/a")


def test_a_yaml_may_not_choose_a_store_unless_it_is_allowed(tmp_path):
    (tmp_path / "config.yaml").write_text(f"run: {{dir: '{URL}', epochs: 1}}")
    with pytest.raises(ConfigError, match=f"'{URL}', which a YAML file may not choose"):
        load("config.yaml").check()
    assert "may not choose" in str(load("config.yaml", allow=["s3://buck"]).faults())
    assert "may not choose" not in str(load("config.yaml", allow=["s3://bucket"]).faults())


CONFIG = """
model: {type: torch.nn.Linear, in_features: 2, out_features: 1}
optimizer: {type: SGD, lr: 0.1}
"""

COMMANDS = [
    *(["ckpt", action, OTHER] for action in ("ls", "verify", "show", "prune")),
    ["ckpt", "diff", OTHER, OTHER],
    ["ckpt", "export", OTHER, "-o", "weights.pt"],
    ["ckpt", "export", "run", "-o", URL],
    ["ckpt", "import", URL, "-o", "weights.safetensors"],
    ["board", OTHER],
    ["report", OTHER],
    ["status", OTHER],
    ["new", URL],
    ["train", "config.yaml", f"run.dir={OTHER}"],
    ["train", "config.yaml", "--resume", OTHER],
    ["train", "config.yaml", "--nproc", "2", f"run.dir={OTHER}"],
    ["predict", "config.yaml", "-o", f"{URL}"],
]


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_every_command_rejects_a_url_with_one_line(words, capsys, tmp_path):
    (tmp_path / "config.yaml").write_text(CONFIG)
    assert main(words) == 2
    lines = [line for line in capsys.readouterr().err.splitlines() if "expected a local" in line]
    assert len(lines) == 1
    assert f"is '{OTHER}'" in lines[0] or f"is '{URL}'" in lines[0]
    assert {path.name for path in tmp_path.iterdir()} == {"config.yaml"}
