import json
import logging
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from stoker import Hook, Trainer, hooks
from stoker.core.log import get_logger
from stoker.events import Console, Csv, JsonLines, TensorBoard, get_event_storage, read_json_lines
from stoker.hooks import Callback
from support.server import Python
from support.toys import batches, engine, net, trainer


def rows(folder) -> list[dict]:
    return read_json_lines(folder / "metrics.jsonl")


class Talks(nn.Module):
    """Puts a number from inside its forward, as a model far from the trainer would."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = net()
        self.calls = 0

    def forward(self, x):
        if self.training:
            self.calls += 1
            storage = get_event_storage()
            storage.put_scalar("smooth", float(self.calls))
            storage.put_scalar("raw", torch.tensor(float(self.calls)), smoothing_hint=False)
        return self.inner(x)


@pytest.mark.row("L06")
def test_a_number_put_inside_a_forward_lands_under_its_step(tmp_path):
    model = Talks()
    run = Trainer(engine(model), [hooks.Write(JsonLines(), every=10)], run_dir=tmp_path)
    run.fit(batches(120), epochs=1)
    found = [(row["step"], row["smooth"], row["raw"]) for row in rows(tmp_path)]
    # smoothed: the median of the last 20 values, 11 … 30 for step 30
    assert found == [(10, 5.5, 10.0), (20, 10.5, 20.0), (30, 20.5, 30.0)]


@pytest.mark.row("L06")
def test_there_is_no_storage_outside_a_run():
    with pytest.raises(RuntimeError, match="outside a run"):
        get_event_storage()
    trainer().fit(batches(), epochs=1)
    with pytest.raises(RuntimeError, match="outside a run"):
        get_event_storage()


def test_a_failed_run_leaves_no_storage_behind():
    with pytest.raises(ZeroDivisionError):
        trainer(Callback(after_step=lambda run: 1 / 0)).fit(batches(), epochs=1)
    with pytest.raises(RuntimeError, match="outside a run"):
        get_event_storage()


@pytest.mark.row("L07")
def test_each_line_is_an_object_with_its_step_and_lines_are_appended(tmp_path):
    path = tmp_path / "metrics.jsonl"
    run = trainer(hooks.Loss(), hooks.Write(JsonLines(path), every=2))
    run.fit(batches(), epochs=1)
    first = path.read_text()
    assert [json.loads(line)["step"] for line in first.splitlines()] == [2, 4, 5]
    with path.open("a") as file:
        file.write('{"step": 6, "torn')
    assert len(read_json_lines(path)) == 3
    run.fit(batches(), epochs=2)
    assert path.read_text().startswith(first)
    assert [json.loads(line)["step"] for line in path.read_text().splitlines()] == [
        2,
        4,
        5,
        6,
        8,
        10,
    ]


@pytest.mark.row("L08")
def test_every_evaluation_reaches_every_writer_whatever_the_period(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    used = [hooks.Loss(), hooks.Metrics("accuracy")]
    writers = hooks.Write(JsonLines(), TensorBoard(), Csv(), every=1000)
    run = Trainer(engine(), [*used, writers], run_dir=tmp_path)
    run.fit(batches(28), batches(8), max_steps=10, validate_every="3st")
    wanted = [3, 6, 9, 10]
    assert [row["step"] for row in rows(tmp_path) if "val/accuracy" in row] == wanted
    board = EventAccumulator(str(tmp_path / "tb"))
    board.Reload()
    assert [event.step for event in board.Scalars("val/accuracy")] == wanted
    table = (tmp_path / "metrics.csv").read_text().splitlines()
    column = table[0].split(",").index("val/accuracy")
    assert [int(line.split(",")[0]) for line in table[1:] if line.split(",")[column]] == wanted


def test_the_row_of_a_step_is_written_once(tmp_path):
    run = Trainer(engine(), [hooks.Loss(), hooks.Write(JsonLines(), every=5)], run_dir=tmp_path)
    run.fit(batches(20), batches(8), epochs=2)
    assert [(r["step"], sorted(set(r) & {"train/loss", "val/loss"})) for r in rows(tmp_path)] == [
        (5, ["train/loss"]),
        (5, ["val/loss"]),
        (10, ["train/loss"]),
        (10, ["val/loss"]),
    ]


def test_an_evaluation_after_a_resumed_fit_keeps_what_the_fit_has_written(tmp_path):
    for epochs in (1, 3):
        one = Trainer(
            engine(), hooks.default(log_every=2, progress=False), run_dir=tmp_path / "run"
        )
        one.fit(batches(), batches(8), epochs=epochs)
    fitted = read_json_lines(tmp_path / "run" / "metrics.jsonl")
    assert {row["step"] for row in fitted} >= {2, 5, 8, 10, 14, 15}
    one.evaluate(batches(8))
    assert read_json_lines(tmp_path / "run" / "metrics.jsonl")[: len(fitted)] == fitted


def test_a_number_put_once_is_written_under_the_step_it_was_put_at(tmp_path):
    once = Callback(after_step=lambda run: run.record("once", 7.0) if run.step == 3 else None)
    run = Trainer(engine(), [once, hooks.Write(JsonLines(), every=5)], run_dir=tmp_path)
    run.fit(batches(), epochs=1)
    assert [(row["step"], row["once"]) for row in rows(tmp_path)] == [(3, 7.0)]


@pytest.mark.row("L09")
def test_the_console_line_carries_what_people_look_for(capsys):
    used = [
        hooks.Loss(),
        hooks.LR(),
        hooks.Timing(),
        hooks.Throughput(),
        hooks.Write(Console(), every=4),
    ]
    trainer(*used).fit(batches(40), epochs=1)
    lines = capsys.readouterr().err.splitlines()
    assert [re.search(r"step: (\d+)/10", line)[1] for line in lines] == ["4", "8", "10"]
    number = r"[\d.,e+-]+"
    expected = (
        rf"step: 4/10  eta: 0:00:\d\d  samples: 16  train/loss: {number}  time: {number} s/step  "
        rf"data: {number} s/step  samples/s: {number}  lr: 1\.00e-01"
    )
    assert re.fullmatch(expected, lines[0])


def test_numbers_that_json_does_not_know_are_strings_and_come_back(tmp_path):
    strange = {"a": float("nan"), "b": float("inf"), "c": float("-inf")}
    put = Callback(after_epoch=lambda run: [run.record(k, v) for k, v in strange.items()])
    Trainer(engine(), [put, hooks.Write(JsonLines())], run_dir=tmp_path).fit(batches(), epochs=1)
    line = json.loads((tmp_path / "metrics.jsonl").read_text())
    assert (line["a"], line["b"], line["c"]) == ("NaN", "Infinity", "-Infinity")
    back = rows(tmp_path)[0]
    assert back["a"] != back["a"]
    assert (back["b"], back["c"]) == (float("inf"), float("-inf"))


def test_a_table_gets_a_column_for_a_name_that_comes_later(tmp_path):
    run = Trainer(engine(), [hooks.Loss(), hooks.Write(Csv(), every=1)], run_dir=tmp_path)
    run.fit(batches(8), batches(4), epochs=1)
    table = [line.split(",") for line in (tmp_path / "metrics.csv").read_text().splitlines()]
    assert table[0] == ["step", "epoch", "samples", "train/loss", "val/loss"]
    assert [line[0] for line in table[1:]] == ["1", "2", "2"]
    assert table[1][4] == ""
    assert {len(line) for line in table} == {5}


@pytest.mark.slow
def test_a_run_killed_at_any_moment_leaves_complete_lines(tmp_path):
    """SIGKILL from outside, in the middle of writing a row per step."""
    import textwrap
    import time

    script = textwrap.dedent(f"""
        import sys; sys.path.insert(0, {str(next(p for p in sys.path if p.endswith("tests")))!r})
        from support.toys import *
        from stoker import hooks, events
        path = {str(tmp_path / "metrics.jsonl")!r}
        run = trainer(hooks.Loss(), hooks.Write(events.JsonLines(path), every=1))
        run.fit(batches(40), epochs=100_000)
    """)
    child = Python("-c", script)
    path = tmp_path / "metrics.jsonl"
    deadline = time.monotonic() + 600
    while time.monotonic() < deadline and not (path.exists() and path.stat().st_size > 20_000):
        time.sleep(0.01)
    child.kill()
    child.wait()
    steps = [row["step"] for row in read_json_lines(path)]
    assert steps == list(range(1, len(steps) + 1))
    assert len(steps) > 50


def test_a_writer_without_a_place_is_refused_before_training():
    with pytest.raises(ValueError, match="JsonLines writer has nowhere to write: pass run_dir to"):
        trainer(hooks.Write(JsonLines())).fit(batches(), epochs=1)


def test_something_that_is_no_writer_is_refused():
    with pytest.raises(TypeError, match="is not a Writer"):
        hooks.Write("metrics.jsonl")
    with pytest.raises(ValueError, match="at least one writer"):
        hooks.Write()


def test_the_defaults_write_nothing_without_a_run_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Trainer(engine()).fit(batches(), batches(4), epochs=1)
    assert list(tmp_path.iterdir()) == []


def test_the_defaults_fill_the_run_folder(tmp_path):
    Trainer(engine(), run_dir=tmp_path / "x" / "run").fit(batches(), batches(4), epochs=1)
    files = sorted(path.name for path in (tmp_path / "x" / "run").iterdir())
    usual = ["checkpoints", "config.yaml", "env.json", "identity.json", "ledger.jsonl", "log.txt"]
    assert files == [*usual, "metrics.jsonl", "model.safetensors"]


@pytest.mark.slow
def test_tensorboard_that_is_not_installed_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(ImportError, match=r"needs the package 'tensorboard': pip install"):
        TensorBoard()


def test_the_last_line_of_the_log_says_why_the_run_ended(tmp_path):
    stop = Callback(after_step=lambda run: run.stop("seen enough") if run.step == 3 else None)
    Trainer(engine(), [hooks.LogFile(), stop], run_dir=tmp_path).fit(batches(), epochs=9)
    assert (tmp_path / "log.txt").read_text().splitlines()[-1].endswith("INFO seen enough (step 3)")


def test_progress_off_a_terminal_is_a_line_per_epoch(capsys):
    trainer(hooks.Loss(), hooks.Progress()).fit(batches(), batches(4), epochs=2)
    captured = capsys.readouterr()
    lines = captured.err.splitlines()
    assert captured.out == ""
    assert len(lines) == 2
    assert re.fullmatch(r"epoch 1/2  step 5  train/loss \S+  val/loss \S+  \d+\.\d s", lines[0])


def test_progress_off_a_terminal_speaks_within_long_epochs(capsys):
    trainer(hooks.Loss(), hooks.Progress(lines=0.0)).fit(batches(12), epochs=1)
    assert re.search(r"^epoch 1/1  2/3  eta \S+  loss", capsys.readouterr().err, re.MULTILINE)


class Terminal:
    """Standard error that says it is a terminal, and keeps what it is told."""

    encoding = "utf-8"

    def __init__(self) -> None:
        self.text = ""

    def isatty(self) -> bool:
        return True

    def write(self, text: str) -> int:
        self.text += text
        return len(text)

    def flush(self) -> None:
        pass


@contextmanager
def on_a_terminal(monkeypatch) -> Iterator[Terminal]:
    """Within it, standard error is a terminal and logging is as in a plain program."""
    with monkeypatch.context() as patch:
        fake = Terminal()
        patch.setattr(sys, "stderr", fake)
        patch.setattr(logging.getLogger(), "handlers", [])
        patch.setenv("TERM", "xterm-256color")
        patch.setenv("COLUMNS", "120")
        yield fake


def test_the_bar_fills_and_closes(monkeypatch):
    run = trainer(hooks.Loss(), hooks.LR(), hooks.Progress(refresh=0.0))
    with on_a_terminal(monkeypatch) as terminal:
        run.fit(batches(), batches(8), epochs=2)
        run.evaluate(batches(8))
        run.predict(batches(8))
    for shown in ("epoch 1/2", "epoch 2/2", "5/5", "val", "predict", "2/2", "loss", "lr 1.00e-01"):
        assert shown in terminal.text
    assert terminal.text.count("\x1b[?25l") == terminal.text.count("\x1b[?25h") > 0


def test_the_bar_closes_when_the_run_fails(monkeypatch):
    fail = Callback(after_step=lambda run: 1 / 0 if run.step > 2 else None)
    with on_a_terminal(monkeypatch) as terminal, pytest.raises(ZeroDivisionError):
        trainer(hooks.Progress(refresh=0.0), fail).fit(batches(), epochs=1)
    assert terminal.text.count("\x1b[?25l") == terminal.text.count("\x1b[?25h") > 0


def test_no_color_is_honoured(monkeypatch):
    coloured = re.compile(r"\x1b\[[\d;]*3[0-7]m")
    with on_a_terminal(monkeypatch) as terminal:
        trainer(hooks.Loss(), hooks.Progress(refresh=0.0)).fit(batches(), epochs=1)
    assert coloured.search(terminal.text)
    monkeypatch.setenv("NO_COLOR", "1")
    with on_a_terminal(monkeypatch) as terminal:
        trainer(hooks.Loss(), hooks.Progress(refresh=0.0)).fit(batches(), epochs=1)
    assert not coloured.search(terminal.text)


def test_validation_between_steps_gives_the_bar_of_training_back(monkeypatch):
    with on_a_terminal(monkeypatch) as terminal:
        run = trainer(hooks.Loss(), hooks.Progress(refresh=0.0))
        run.fit(batches(), batches(4), epochs=1, validate_every=2)
    assert "4/5" in terminal.text
    assert "5/5" in terminal.text


def test_a_loader_without_length_has_a_bar_too(monkeypatch):
    with on_a_terminal(monkeypatch) as terminal:
        trainer(hooks.Progress(refresh=0.0)).fit((b for b in batches()), epochs=1)
    assert "5/?" in terminal.text


def test_messages_stay_complete_above_the_bar(monkeypatch):
    speak = Callback(after_step=lambda run: get_logger().info(f"message at {run.step}"))
    with on_a_terminal(monkeypatch) as terminal:
        trainer(hooks.Progress(refresh=0.0), speak).fit(batches(), epochs=1)
    assert all(f"message at {number}" in terminal.text for number in range(1, 6))


def test_a_step_that_fails_leaves_no_row(tmp_path):
    class Breaks(Talks):
        def forward(self, x):
            out = super().forward(x)
            if self.calls == 3:
                raise RuntimeError("broken")
            return out

    run = Trainer(engine(Breaks()), [hooks.Write(JsonLines(), every=1)], run_dir=tmp_path)
    with pytest.raises(RuntimeError, match="broken"):
        run.fit(batches(), epochs=1)
    assert [row["step"] for row in rows(tmp_path)] == [1, 2]


def test_lines_of_many_steps_reach_the_file_together_and_are_there_at_every_save(tmp_path):
    """What a checkpoint counts on is in the file; the rest follows at the end."""
    seen = {}

    def look(run):
        path = run.dir / "metrics.jsonl"
        seen[run.step] = len(path.read_text().splitlines()) if path.exists() else 0

    watch = Callback(name="watch", priority=0, before_step=look)
    used = [hooks.Loss(), hooks.Write(JsonLines(), every=1), hooks.Checkpoint("4st"), watch]
    Trainer(engine(), used, run_dir=tmp_path).fit(batches(32), epochs=1)
    assert seen[4] == 4
    assert seen[1] == 1, "the first line reaches the file at once"
    assert len(rows(tmp_path)) == 8


@pytest.mark.parametrize("value", [0.1, -2.5e-300, 1e22, float("nan"), float("inf"), -float("inf")])
def test_a_line_is_the_json_of_its_numbers(tmp_path, value):
    from stoker.events.storage import Row
    from stoker.events.writers.base import RunProgress

    writer = JsonLines()
    writer.open(tmp_path / "metrics.jsonl")
    writer.write([Row(3, {'a "name"/é': value})], RunProgress(3, 1, 24))
    writer.close()
    line = json.loads((tmp_path / "metrics.jsonl").read_text())
    assert [line["step"], line["epoch"], line["samples"]] == [3, 1, 24]
    assert repr(float(line['a "name"/é'])) == repr(value)


def test_who_takes_over_writes_a_row_with_the_progress_of_its_own_step(tmp_path, monkeypatch):
    def train(name: str, *others: Hook) -> list[dict]:
        write = hooks.Write(JsonLines(), every=1)
        run = Trainer(engine(), [hooks.Loss(), write, *others], run_dir=tmp_path / name)
        run.fit(batches(16), epochs=1)
        return [{**row, "time": 0} for row in rows(tmp_path / name)]

    expected = train("one")
    is_main = False

    def take_over(run) -> None:
        nonlocal is_main
        if run.step == 3:  # the former rank 0 has written one row
            is_main = True
            path = run.dir / "metrics.jsonl"
            path.write_text((tmp_path / "one/metrics.jsonl").read_text().splitlines(True)[0])

    job = SimpleNamespace(members=object, is_main=lambda: is_main, inherited=lambda: True)
    monkeypatch.setattr("stoker.hooks.write.dist", job)
    assert train("two", Callback(after_step=take_over)) == expected
    assert [row["samples"] for row in expected[:3]] == [4, 8, 12]
