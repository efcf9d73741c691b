"""`stoker report`: one file about runs, whatever is in their folders."""

import json
import os
import re
import shutil
import sys
from html.parser import HTMLParser

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from stoker import Trainer, hooks
from stoker.cli import main
from stoker.report.charts import points_of, ticks
from stoker.report.document import read_facts
from stoker.report.output import write_report
from stoker.rundir.reader import Curve
from support.project import project
from support.toys import batches, engine

HOSTILE = "<script>alert('x')</script>"


class Page(HTMLParser):
    """The words of a page, its tags, and where it would ask for more."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.words, self.asks = [], [], []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.asks += [(tag, name) for name, _ in attrs if name in ("src", "href", "xlink:href")]

    def handle_data(self, data):
        self.words.append(data)

    @property
    def text(self):
        return " ".join(" ".join(self.words).split())


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run from a config, in two attempts."""
    with pytest.MonkeyPatch.context() as patch:
        folder = project(tmp_path_factory.mktemp("project"), patch)
        for epochs in (2, 3):
            assert main(["train", "cfg.yaml", "run.seed=1", f"run.epochs={epochs}"]) == 0
    return folder / "runs" / "cfg"


@pytest.fixture
def copy(run, tmp_path):
    """The same run, to be broken."""
    return shutil.copytree(run, tmp_path / "run")


def page_of(*runs):
    (path,) = write_report(runs, runs[0].parent / "report.html")
    return Page(path.read_text(encoding="utf-8"))


@pytest.mark.slow
def test_a_page_shows_curves_configuration_environment_checkpoints_goodput_and_a_card(copy):
    page = page_of(copy)
    for wanted in (
        "run finished 15 3 60",
        "Curves", "train/loss", "val/loss", "lr",
        "Model card", "parts.Net(width=8)", "torch.optim.SGD(lr=0.1)", "67 in 4 tensors of F32",
        "Results", "Goodput", "of", "over all attempts was useful training", "0 to 10", "10 to 15",
        "step-00000015", "verified", "Configuration (config.yaml)", "_target_: parts.Net",
        "Environment, attempt 2", '"torch"', "Last lines of the log", "finished (step 15)",
    ):  # fmt: skip
        assert wanted in page.text, wanted
    assert page.tags.count("figure") == page.tags.count("svg") - 1 > 3


def test_a_page_asks_for_nothing_from_anywhere(copy):
    page = page_of(copy)
    assert page.asks == []
    assert not {"script", "img", "link", "iframe", "object"} & set(page.tags)


def test_several_runs_share_charts_and_their_configs_are_compared(copy, tmp_path):
    other = shutil.copytree(copy, tmp_path / "other")
    config = (other / "config.yaml").read_text()
    (other / "config.yaml").write_text(config.replace("lr: 0.1", "lr: 0.7"))
    page = page_of(copy, other)
    assert "Configuration differences run other optimizer.lr 0.1 0.7" in page.text
    source = (tmp_path / "report.html").read_text()
    loss = re.search(r"<figcaption>val/loss</figcaption>(.*?)</figure>", source)[1]
    assert loss.count('class="curve"') == 2
    assert len(set(re.findall(r'stroke="(#\w+)"', loss))) == 2


def test_runs_of_one_name_are_distinguished_by_their_paths(copy, tmp_path):
    other = shutil.copytree(copy, tmp_path / "more" / "run")
    assert f"{copy} finished" in page_of(copy, other).text


@pytest.mark.slow
def test_what_a_run_says_is_text_and_never_markup(tmp_path):
    hook = hooks.Callback(after_step=lambda run: run.record(f"val/{HOSTILE}", 1.0))
    used = [hook, *hooks.default(progress=False)]
    folder = tmp_path / HOSTILE.replace("/", "∕")
    Trainer(engine(), used, run_dir=folder).fit(batches(), epochs=1)
    (folder / "config.yaml").write_text(f"model: {{_target_: {HOSTILE!r}}}\nrun: {{seed: 1}}\n")
    (folder / "env.json").write_text(json.dumps({"python": HOSTILE, "system": {"cpus": HOSTILE}}))
    (folder / "log.txt").write_text(HOSTILE + "\x00\x1b[31m\n")
    (folder / "checkpoints" / f"step-{HOSTILE}".replace("/", "∕")).mkdir()
    page = page_of(folder)
    assert "script" not in page.tags
    assert page.text.count("<script>") >= 6
    text = write_report([folder], tmp_path / "report.md", "md")[0].read_text(encoding="utf-8")
    outside = re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE)
    assert re.search(r"(?<!\\)<", outside) is None


def test_a_broken_run_is_shown_as_such(copy):
    with (copy / "metrics.jsonl").open("a") as file:
        file.write('{"step": 16, "torn\n')
    (copy / "env.json").write_text("[]")
    (copy / "config.yaml").write_bytes(b"\xff\xfe: [")
    model = next((copy / "checkpoints").glob("*/model.safetensors"))
    model.write_bytes(model.read_bytes()[:-1] + b"x")
    (copy / "model.safetensors").write_bytes(b"\xff" * 20)
    page = page_of(copy)
    for wanted in (
        "finished, broken files", "2 valid, 1 broken",
        "metrics.jsonl has 1 line that cannot be read", "env.json is broken: it holds a list",
        "config.yaml is broken", "model.safetensors is broken: its header is longer",
        "'model.safetensors' has checksum",
    ):  # fmt: skip
        assert wanted in page.text, wanted


def test_a_killed_run_has_no_end(copy):
    lines = (copy / "ledger.jsonl").read_text().splitlines()
    (copy / "ledger.jsonl").write_text("\n".join(lines[:-1]) + "\n" + lines[-1][:40])
    log = (copy / "log.txt").read_text().splitlines()
    (copy / "log.txt").write_text("\n".join(log[:-1]) + "\n")
    for path in copy.rglob("*"):
        os.utime(path, (1e9, 1e9))
    page = page_of(copy)
    assert "run dead 15 3" in page.text
    assert "dead: it has stopped writing" in page.text
    assert "no end recorded" in page.text


@pytest.mark.slow
def test_markdown_has_a_picture_beside_it_where_there_is_matplotlib(copy, tmp_path, monkeypatch):
    text, picture = write_report([copy], tmp_path / "r.md", "md")
    assert "![curves](r.png)" in text.read_text()
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert "| model | parts.Net(width=8) |" in text.read_text()
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    (text,) = write_report([copy], tmp_path / "r.md", "md")
    assert "To draw the curves" in text.read_text()
    with pytest.raises(ImportError, match=r"pip install 'stoker\[plot\]'"):
        write_report([copy], tmp_path / "r.png", "png")


def test_names_that_matplotlib_would_read_as_formulas_are_drawn_as_they_are(tmp_path):
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "$x^$": 1, "_": "NaN", "\\u0001": 2}\n')
    (path,) = write_report([tmp_path], tmp_path / "r.png", "png")
    assert path.stat().st_size > 1000


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=8,
)
KINDS = ("startup", "train", "data", "save", "eval", "other")
NUMBER = st.integers() | st.floats() | st.just(10**400)
ROW = st.fixed_dictionaries(
    {"attempt": st.sampled_from("ab"), "step": st.integers(0, 99), "time": NUMBER}
    | dict.fromkeys(KINDS, NUMBER),
    optional={"event": st.sampled_from(["begin", "end"]), "end": JSON, "why": JSON, "pid": JSON},
)
POINT = st.dictionaries(st.sampled_from(["loss", "val/loss", "epoch", "time"]), NUMBER | JSON).map(
    lambda numbers: {"step": len(numbers), **numbers}
)


def lines(rows):
    return st.lists(rows | JSON, max_size=6).map(
        lambda found: "\n".join(map(json.dumps, found)).encode()
    )


FILES = {
    "config.yaml": st.binary() | JSON.map(json.dumps).map(str.encode) | st.text().map(
        lambda text: text.encode("utf-8", "surrogatepass")),
    "env.json": st.binary() | JSON.map(json.dumps).map(str.encode),
    "env-2.json": st.binary(),
    "metrics.jsonl": st.binary() | lines(POINT),
    "ledger.jsonl": st.binary() | lines(ROW),
    "log.txt": st.binary(),
    "model.safetensors": st.binary() | JSON.map(json.dumps).map(
        lambda text: len(text.encode()).to_bytes(8, "little") + text.encode()),
    "checkpoints/step-00000015/MANIFEST.json": st.binary() | JSON.map(json.dumps).map(str.encode),
    "checkpoints/step-00000015/model.safetensors": st.binary(),
    "checkpoints/step-00000010/state.json": st.binary(),
}  # fmt: skip


@pytest.mark.slow
@settings(max_examples=80, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    bytes_of=st.fixed_dictionaries({}, optional=FILES), folders=st.sets(st.sampled_from([*FILES]))
)
def test_random_bytes_in_the_files_of_a_run_never_crash_a_report(
    run, tmp_path_factory, bytes_of, folders
):
    broken = shutil.copytree(run, tmp_path_factory.mktemp("broken") / "run")
    for name, content in bytes_of.items():
        (broken / name).parent.mkdir(parents=True, exist_ok=True)
        (broken / name).write_bytes(content)
    for name in [name for name in folders if "/" not in name][:2]:
        (broken / name).unlink(missing_ok=True)
        (broken / name).mkdir()
    page = page_of(broken)
    assert page.tags.count("html") == 1
    assert not {"script", "img", "link"} & set(page.tags)
    assert main(["report", str(broken), "--goodput"]) in (0, 1)
    shutil.rmtree(broken.parent)


@given(st.lists(st.tuples(st.integers(0, 10**6), st.floats()), max_size=50))
def test_a_thinned_curve_keeps_its_lowest_and_highest_value(points):
    steps, values = (np.array([point[i] for point in points]) for i in (0, 1))
    drawn = [value for _, value in points_of(Curve(steps, values), 6) if value == value]
    drawable = [value for _, value in points if abs(value) < 1e300]
    assert len(drawn) <= 6 or len(points) <= 6
    if drawable:
        assert (min(drawn), max(drawn)) == (min(drawable), max(drawable))


@given(st.floats(-1e300, 1e300), st.floats(-1e300, 1e300))
@example(1.2000000000000002e16, 1.1125369292536007e-308)
def test_ticks_lie_within_their_axis(one, other):
    low, high = sorted((one, other))
    found = ticks(low, high)
    assert found == sorted(found)
    assert len(found) <= 8
    assert all(low <= tick <= high or high - low < 1e-280 for tick in found)


def test_the_command_names_what_is_no_run_and_what_may_be_meant(copy, tmp_path, capsys):
    assert main(["report", str(tmp_path / "runn")]) == 2
    assert f"did you mean '{tmp_path / 'run'}'?" in capsys.readouterr().err
    assert main(["report", str(tmp_path)]) == 2
    assert f"is not a run folder; did you mean {copy}?" in capsys.readouterr().err
    assert main(["report", str(copy), "-o", "report.pdf"]) == 2
    assert "must end in .html, .md or .png" in capsys.readouterr().err


@pytest.mark.slow
def test_the_command_writes_what_the_name_of_the_file_says(copy, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["report", "run"]) == 0
    assert main(["report", "run", "-o", "about/it.md", "--quick"]) == 0
    assert main(["report", "run", "--format", "png"]) == 0
    assert capsys.readouterr().out.split() == [
        *("report.html", "about/it.md", "about/it.png", "report.png"),
    ]


def test_the_command_prints_goodput_and_the_three_biggest_losses(copy, capsys):
    assert main(["report", "--goodput", str(copy)]) == 0
    first, second, *losses = capsys.readouterr().out.splitlines()
    assert re.fullmatch(rf"{copy}: goodput \d+\.\d %", first)
    assert re.fullmatch(r"  useful training .* of .*, in 2 attempts", second)
    shares = [float(re.search(r"([\d.]+) %", line)[1]) for line in losses]
    assert len(shares) == 3
    assert shares == sorted(shares, reverse=True)
    (copy / "ledger.jsonl").unlink()
    assert main(["report", "--goodput", str(copy)]) == 1


def test_quick_looks_at_sizes_alone(copy):
    model = next((copy / "checkpoints").glob("*/model.safetensors"))
    model.write_bytes(model.read_bytes()[:-1] + b"x")
    assert [len(one.faults) for one in read_facts(copy).checkpoints] == [1, 0, 0]
    assert [len(one.faults) for one in read_facts(copy, quick=True).checkpoints] == [0, 0, 0]
