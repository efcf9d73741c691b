"""What a person sees in a terminal of some width, captured from a real pseudo-terminal."""

import logging
import re
import sys

import pytest
import torch

from stoker import Trainer, hooks
from stoker.cli import main
from stoker.cli.output import note
from stoker.core.log import get_logger
from stoker.hooks import Callback
from stoker.hooks.terminal import Level, format_clock, grid, results
from support.pseudo_terminal import pseudo_terminal
from support.toys import batches, engine, trainer

WIDTHS = (60, 80, 120, 200)
BAR = re.compile(r"epoch 2/3 [━─]{8,30} 4/5  eta \d:\d\d  loss \d\.\d+")


def named(name, **points):
    hook = Callback(**points)
    hook.name = name
    return hook


def capture(terminal, at, seen):
    """A hook that appends the screen after that step."""

    def after_step(run):
        if run.step == at:
            seen.append(terminal.screen())

    return named(f"capture at {at}", after_step=after_step, priority=100)


def record(count, long=""):
    def after_val(run):
        for number in range(count):
            run.record(f"val/metric_{number}", number / 7)
        if long:
            run.record(long, 0.5)

    return Callback(after_val=after_val)


def fit(*more, epochs=3, **options):
    used = [hooks.Loss(), hooks.LR(), hooks.Metrics("accuracy"), *more]
    trainer(*used, hooks.Progress(refresh=0.0)).fit(batches(), batches(), epochs=epochs, **options)


def seen_at(monkeypatch, columns, *more, at=9, epochs=3, environment=(), **options):
    """The screens after a step, and after the end."""
    seen = []
    with pseudo_terminal(monkeypatch, columns, **dict(environment)) as terminal:
        used = [hooks.Loss(), hooks.LR(), hooks.Metrics("accuracy"), *more]
        used += [hooks.Progress(refresh=0.0), capture(terminal, at, seen)]
        trainer(*used).fit(batches(), batches(), epochs=epochs, **options)
        seen.append(terminal.screen())
        return *seen, terminal.raw


@pytest.mark.parametrize("columns", WIDTHS)
def test_epoch_step_bar_time_left_and_loss_are_shown_at_every_width(monkeypatch, columns):
    during, _, _ = seen_at(monkeypatch, columns)
    *_, bar = during
    assert BAR.match(bar), bar
    assert len(bar) < columns
    assert "…" not in "".join(during)
    assert ("samples/s" in bar) == (columns >= 120)
    assert ("val/loss" in bar) == (columns >= 80)


@pytest.mark.parametrize("columns", WIDTHS)
@pytest.mark.parametrize("long", ["", "val/" + "a_long_name_" * 6])
def test_many_metrics_are_a_table_in_which_every_value_is_complete(monkeypatch, columns, long):
    during, after, _ = seen_at(monkeypatch, columns, record(10, long), epochs=2, at=7)
    assert during[-1].startswith("epoch 2/2 ")
    assert max(map(len, after)) <= columns
    text = "\n".join(after)
    second = text[text.index("epoch 2/2  step 10") :]
    for number in range(10):
        assert re.search(rf"val/metric_{number}\s+{number / 7:.4g}\b", second), second
    assert long in second.replace("\n", "").replace(" ", "")
    assert "…" not in text


@pytest.mark.parametrize(("before", "after"), [(120, 80), (80, 60), (60, 200)])
def test_the_bar_follows_the_width_of_the_window(monkeypatch, before, after):
    seen = []
    with pseudo_terminal(monkeypatch, before) as terminal:

        def resize(run):
            if run.step == 7:
                terminal.resize(after)

        at = [capture(terminal, step, seen) for step in (7, 9)]
        fit(Callback(after_step=resize), *at)
        end = terminal.screen()
    (first, second) = (screen[-1] for screen in seen)
    assert len(first) < after or after > before
    assert BAR.match(second), second
    assert len(second) < after
    assert sum(line.startswith("epoch") for line in end) == 3, end
    assert not any("━" in line or "─" in line for line in end)


def test_a_validation_within_an_epoch_has_a_bar_below_that_of_training(monkeypatch):
    seen = []
    with pseudo_terminal(monkeypatch) as terminal:
        look = Callback(after_val_step=lambda run: seen.append(terminal.screen()), priority=100)
        fit(look, epochs=1, validate_every=2)
    assert re.match(r"epoch 1/1 [━─]+ 2/5  eta \S+ +loss", seen[1][0])
    assert re.match(r"val [━─]+ 2/5$", seen[1][1])


def test_what_is_printed_during_a_run_is_above_the_bar(monkeypatch):
    import sys

    printed = Callback(after_step=lambda run: print(f"at {run.step}", file=sys.stderr))
    during, after, _ = seen_at(monkeypatch, 120, printed, at=4, epochs=1)
    assert during[:3] == ["at 1", "at 2", "at 3"]
    assert during[-1].startswith("epoch 1/1 ")
    assert [line[:9] for line in after] == ["at 1", "at 2", "at 3", "at 4", "at 5", "epoch 1/1"]


def test_a_resumed_epoch_starts_in_the_middle_of_its_bar(monkeypatch, tmp_path):
    def attempt(**until):
        with pseudo_terminal(monkeypatch) as terminal:  # no hook holds it: hooks have saved state
            used = [hooks.Loss(), hooks.Checkpoint(1), hooks.Progress(refresh=0.0)]
            Trainer(engine(), used, run_dir=tmp_path / "run").fit(batches(), **until)
            terminal.screen()
        return re.sub(r"\x1b\[[\d;?]*[a-zA-Z]", "", terminal.raw.decode())

    assert " 2/2 " in attempt(max_steps=7)
    drawn = re.findall(r"epoch (\S+) ([━─]+) (\S+)  eta", attempt(epochs=3))
    epoch, bar, count = drawn[0]
    assert (epoch, count) == ("2/3", "3/5")
    assert bar.count("━") == len(bar) * 3 // 5


def test_no_color_leaves_the_characters_that_tell_done_from_left(monkeypatch):
    _, _, plain = seen_at(monkeypatch, 80, environment={"NO_COLOR": "1"})
    _, _, coloured = seen_at(monkeypatch, 80)
    assert not re.search(rb"\x1b\[[\d;]*3\dm", plain)
    assert re.search(rb"\x1b\[[\d;]*36m", coloured)
    assert not re.search(rb"\x1b\[[\d;]*3[12]m", coloured)  # neither red nor green
    assert "━" in plain.decode()
    assert "─" in plain.decode()


@pytest.mark.parametrize("environment", [{"TERM": "dumb"}, {"CI": "true"}])
def test_a_terminal_that_cannot_be_redrawn_gets_lines(monkeypatch, environment):
    during, after, raw = seen_at(monkeypatch, 120, environment=environment)
    assert [line[:9] for line in after] == ["epoch 1/3", "epoch 2/3", "epoch 3/3"]
    assert len(during) == 1
    assert b"\x1b[" not in raw


def test_a_window_that_wraps_its_lines_again_leaves_no_piece_of_the_old_bar(monkeypatch):
    with pseudo_terminal(monkeypatch, 120, TMUX="yes") as terminal:

        def resize(run):
            if run.step == 3:
                terminal.resize(60)

        fit(Callback(after_step=resize, priority=100), epochs=1)
        terminal.screen()
    assert terminal.raw.count(b"\x1b[2K\x1b[1A\r\x1b[2K") == 1  # up before it erases the bar


def test_the_last_table_folds_a_name_that_is_wider_than_the_window(monkeypatch):
    long = "val/" + "loss_of_something_" * 4
    _, after, _ = seen_at(monkeypatch, 60, record(1, long), epochs=5)
    head = next(number for number, line in enumerate(after) if line.split() == ["last", "best"])
    table = after[head:]
    assert max(map(len, table)) <= 60
    assert long in "".join(table)
    assert any(re.match(r"val/accuracy +\S+ +\S+  epoch \d", line) for line in table)


# Layout


def test_clock():
    assert [format_clock(s) for s in (0.4, 75, 3725, 90061)] == [
        "0:00",
        "1:15",
        "1:02:05",
        "1d 01:01:01",
    ]


@pytest.mark.parametrize("width", range(22, 200))
def test_no_row_of_a_bar_is_wider_than_the_terminal(width):
    level = Level("epoch 100/100", 100_000, 0.0, 99_999, ["eta 23:59:59", "loss 0.0123"], ["x" * 9])
    rows = level.rows(width)
    assert all(len(before) + bar + len(after) <= width for before, bar, after in rows)
    text = "".join(before + after for before, _, after in rows)
    for part in ("epoch 100/100", "99999/100000", "eta 23:59:59", "loss 0.0123"):
        assert part in text


@pytest.mark.parametrize("width", [1, 20, 40, 80, 200])
def test_a_grid_holds_every_pair_in_order_and_within_the_width(width):
    torch.manual_seed(0)
    sizes = torch.randint(1, 30, (17,)).tolist()
    cells = [(f"{'n' * size}{number}", f"{number}.5") for number, size in enumerate(sizes)]
    lines = grid(cells, width)
    assert sorted("".join(lines).replace(" ", "")) == sorted("".join(n + v for n, v in cells))
    assert all(len(line) <= width for line in lines if "  " in line)


@pytest.mark.parametrize("width", [40, 60, 80])
def test_tables_of_an_epoch_with_short_numbers_have_the_columns_of_the_others(width):
    names = ("train/loss", "val/loss", "val/accuracy")
    long, short = (
        results("epoch 1/30  step 1008", [(name, value) for name in names], "0.1 s", width)
        for value in ("0.03373", "1")
    )
    assert long.replace("0.03373", "      1") == short


def test_results_that_fit_are_one_line():
    cells = [("loss", "1"), ("accuracy", "0.5")]
    assert results("epoch 1", cells, "2 s", 80) == "epoch 1  loss 1  accuracy 0.5  2 s"
    table = "epoch 1  2 s\n  loss            1\n  accuracy      0.5"
    assert results("epoch 1", cells, "2 s", 30) == table
    assert results("epoch 1", [], "2 s", 3) == "epoch 1  2 s"


SENTENCE = (
    "resuming the run in runs/first, which was made differently: optimizer.lr was 0.1 and is 0.01; "
    "model.width was 64 and is 128. Optimizer and scheduler stay as saved"
)


@pytest.mark.parametrize("columns", WIDTHS)
@pytest.mark.parametrize("during", [False, True], ids=["alone", "above a bar"])
def test_log_lines_break_between_words(monkeypatch, columns, during):
    monkeypatch.setattr(logging.getLogger(), "handlers", [])  # those of pytest
    with pseudo_terminal(monkeypatch, columns) as terminal:
        if during:
            fit(Callback(before_epoch=lambda run: get_logger().warning(SENTENCE)), epochs=1)
        else:
            get_logger().warning(SENTENCE)
        lines = terminal.screen()
    shown = lines[: next((n for n, one in enumerate(lines) if one.startswith("epoch")), None)]
    assert " ".join(line.strip() for line in shown) == f"warning: {SENTENCE}"
    assert max(map(len, shown)) < columns
    assert all(line.startswith("  ") for line in shown[1:])


HINT = (
    "next: stoker evaluate config.yaml, or change a value: stoker train config.yaml optimizer.lr=…"
)


@pytest.mark.parametrize("columns", WIDTHS)
def test_the_errors_and_hints_of_commands_break_between_words(monkeypatch, columns, tmp_path):
    with pseudo_terminal(monkeypatch, columns) as terminal:
        monkeypatch.setattr(sys, "stdout", terminal.stream)
        note(HINT)
        assert main(["train", "config.yaml", "--nproc", "2", "--on", "ray"]) == 2
        lines = terminal.screen()
    words = " ".join(line.strip() for line in lines)
    assert words.startswith(HINT)
    assert "stoker: " in words
    assert max(map(len, lines)) < columns


def test_a_pipe_gets_complete_lines(capsys):
    note(SENTENCE)
    assert capsys.readouterr().out == f"{SENTENCE}\n"
