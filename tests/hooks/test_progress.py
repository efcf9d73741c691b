"""What people see while a run goes on."""

import io
import re
import sys
from contextlib import contextmanager
from itertools import count

import pytest
from torch.utils.data import DataLoader, IterableDataset

from stoker import Trainer, hooks
from stoker.hooks import Callback
from support.toys import batches, engine, trainer


class Terminal(io.StringIO):
    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


@contextmanager
def on_a_terminal(monkeypatch):
    """Within it, standard error is a terminal; a fixture comes too early for that."""
    with monkeypatch.context() as patch:
        screen = Terminal()
        patch.setattr(sys, "stderr", screen)
        patch.setenv("TERM", "xterm-256color")
        patch.setenv("COLUMNS", "160")
        yield screen


def pictures(screen):
    """Each drawing as lines of plain text."""
    drawn = re.split(r"(?:\x1b\[\d+[AK]|\x1b\[2K|\r)+", screen.getvalue())
    return [re.sub(r"\x1b\[[\d;?]*[a-zA-Z]", "", picture) for picture in drawn]


def test_the_bar_has_loss_result_rate_throughput_and_the_time_left(monkeypatch):
    used = [hooks.Loss(), hooks.LR(), hooks.Metrics("accuracy"), hooks.Progress(refresh=0.0)]
    with on_a_terminal(monkeypatch) as terminal:
        trainer(*used).fit(batches(), batches(), epochs=2)
    shown = [p for p in pictures(terminal) if re.search(r"epoch 2/2 .* 4/5", p)]
    assert shown
    parts = ("loss", "val/loss", "val/accuracy", "lr 1.00e-01", "samples/s", "eta 0:00")
    assert all(part in shown[0] for part in parts), shown[0]


@pytest.mark.slow
def test_an_epoch_that_continues_is_counted_from_its_beginning(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("stoker.hooks.progress._LONGEST_PAUSE", 0.0)  # a line for each step

    def fit(**until):
        used = [hooks.Checkpoint(1), hooks.Progress(lines=0.0)]
        Trainer(engine(), used, run_dir=tmp_path / "run").fit(batches(), **until)
        return re.findall(r"epoch (\S+)  (\d+/\d+)", capsys.readouterr().err)

    assert fit(max_steps=2) == [("1", "1/2"), ("1", "2/2")]
    assert fit(max_steps=4) == [("1", "3/4"), ("1", "4/4")]
    assert fit(epochs=2)[:2] == [("1/2", "5/5"), ("2/2", "1/5")]


def test_a_validation_has_a_bar_below_that_of_training(monkeypatch):
    run = trainer(hooks.Loss(), hooks.Progress(refresh=0.0))
    with on_a_terminal(monkeypatch) as terminal:
        run.fit(batches(), batches(12), epochs=1, validate_every=2)
    text = "\n".join(pictures(terminal))
    assert re.search(r"epoch 1/1 .* 2/5 .*\n(.*\n)?val .* 1/3", text)
    assert re.search(r"epoch 1/1 .* 3/5", text)
    assert terminal.getvalue().count("\x1b[?25l") == terminal.getvalue().count("\x1b[?25h") == 1


@pytest.mark.slow
def test_the_bar_is_drawn_by_the_clock_and_not_by_the_step(monkeypatch):
    ticks = count()
    monkeypatch.setattr("stoker.hooks.progress.perf_counter", lambda: next(ticks) * 0.001)
    with on_a_terminal(monkeypatch) as terminal:
        trainer(hooks.Loss(), hooks.Progress()).fit(batches(2000, 1), epochs=1)
    assert 5 < terminal.getvalue().count("/2000") < 40


@pytest.mark.slow
def test_short_epochs_are_drawn_four_times_a_second_too(monkeypatch):
    ticks = count()
    monkeypatch.setattr("stoker.hooks.progress.perf_counter", lambda: next(ticks) * 0.03)
    with on_a_terminal(monkeypatch) as terminal:
        trainer(hooks.Loss(), hooks.Progress()).fit(batches(), batches(), epochs=100)
    drawn = [picture for picture in pictures(terminal) if "━" in picture]
    seconds = next(ticks) * 0.03
    assert 2 * seconds < len(drawn) < 5 * seconds


def test_a_bar_takes_the_length_of_what_it_shows_now_or_says_that_it_is_not_known(monkeypatch):
    class Stream(IterableDataset):
        def __iter__(self):
            yield from batches()

    parts = {"known": batches(), "stream": DataLoader(Stream(), batch_size=None)}
    with on_a_terminal(monkeypatch) as terminal:
        trainer(hooks.Progress(refresh=0.0)).fit(batches(), parts, epochs=2)
    shown = "\n".join(pictures(terminal))
    assert re.search(r"known .* 2/5", shown)
    assert re.search(r"stream .* 2/\?", shown)
    assert not re.search(r"stream .* 2/5", shown)


def test_a_log_file_gets_plain_lines(capsys):
    used = [hooks.Loss(), hooks.LR(), hooks.Progress(lines=0.0)]
    trainer(*used).fit(batches(), batches(8), epochs=1)
    log = capsys.readouterr().err
    lines = log.splitlines()
    assert not re.search(r"[\x00-\x09\x0b-\x1f]", log)
    assert re.fullmatch(r"epoch 1/1  3/5  eta 0:00  loss \S+ +lr 1.00e-01  \S+ samples/s", lines[2])
    assert "val  1/2" in lines


def test_a_run_of_some_epochs_ends_with_a_table_of_last_and_best_results(tmp_path, capsys):
    values = iter([3.0, 1.0, 2.0, 5.0, 4.0])

    def record(run):
        run.record("val/loss", next(values))
        run.record("val/accuracy", run.epoch / 10)
        run.record("val/thing", 7.0)

    used = [Callback(after_val=record), hooks.Progress(), hooks.LogFile()]
    Trainer(engine(), used, run_dir=tmp_path / "run").fit(batches(), batches(4), epochs=5)
    *epochs, head, loss, accuracy, thing, last = capsys.readouterr().err.splitlines()
    assert len(epochs) == 5
    assert head.split() == ["last", "best"]
    assert loss.split() == ["val/loss", "4", "1", "epoch", "2"]
    assert accuracy.split() == ["val/accuracy", "0.5", "0.5", "epoch", "5"]
    assert thing.split() == ["val/thing", "7"]
    assert re.fullmatch(rf"step 25  \S+ s  \S+ samples/s; in {tmp_path / 'run'}", last)


@pytest.mark.slow
def test_a_run_that_resumes_has_the_best_of_all_attempts_in_its_table(tmp_path, capsys):
    losses = {1: 4.0, 2: 3.0, 3: 1.0, 4: 2.0, 5: 6.0, 6: 5.0}

    def attempt(fails_at=None):
        look = Callback(
            after_val=lambda run: run.record("val/loss", losses[run.epoch]),
            after_step=lambda run: 1 / 0 if run.step == fails_at else None,
        )
        used = [look, hooks.Progress(), hooks.Checkpoint("1st")]
        Trainer(engine(), used, run_dir=tmp_path / "run").fit(batches(), batches(4), epochs=6)

    for step in (13, 23):  # both within an epoch
        with pytest.raises(ZeroDivisionError):
            attempt(fails_at=step)
    attempt()
    *_, loss, _ = capsys.readouterr().err.splitlines()
    assert loss.split() == ["val/loss", "5", "1", "epoch", "3"]


def test_a_short_run_needs_no_table_and_a_long_one_has_it(capsys, monkeypatch):
    trainer(hooks.Loss(), hooks.Progress()).fit(batches(), epochs=4)
    assert len(capsys.readouterr().err.splitlines()) == 4
    ticks = count()
    monkeypatch.setattr("stoker.hooks.summary.perf_counter", lambda: next(ticks) * 61.0)
    trainer(hooks.Loss(), hooks.Progress()).fit(batches(), epochs=1)
    assert "samples/s" in capsys.readouterr().err


def test_a_failed_run_has_no_table(capsys):
    fail = Callback(after_step=lambda run: 1 / 0 if run.epoch == 6 else None)
    with pytest.raises(ZeroDivisionError):
        trainer(hooks.Loss(), hooks.Progress(), fail).fit(batches(), epochs=9)
    assert len(capsys.readouterr().err.splitlines()) == 6
