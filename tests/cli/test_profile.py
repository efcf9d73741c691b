"""`stoker profile`: what it prints, what it leaves alone, and how it ends."""

import json
import re

import pytest

from stoker import Engine
from stoker.cli import main
from stoker.cli.profile.summary import advice, table_text
from stoker.core.op_counter import Counts
from stoker.hooks.cost_report import CostRow, Costs
from support.toys import net, sgd


@pytest.fixture
def temporary(tmp_path, monkeypatch):
    """Where temporary folders are made."""
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    return tmp_path / "temporary"


@pytest.fixture
def stoker(folder, capfd):
    """Runs a command; its exit code, what it printed, and what it complained about."""

    def stoker(*argv):
        capfd.readouterr()
        try:
            code = main([str(word) for word in argv])
        except SystemExit as end:
            code = end.code
        said = capfd.readouterr()
        return code, said.out, said.err

    return stoker


SHORT = ("--steps", "4", "--warmup", "1")


def everything_in(folder):
    """Return all paths, without those that torch makes when a process imports its compiler."""
    caches = ("__pycache__", "torchinductor")
    return {path for path in folder.rglob("*") if not any(one in str(path) for one in caches)}


@pytest.mark.slow
def test_it_prints_where_a_step_goes_and_leaves_nothing(stoker, folder, temporary):
    before = everything_in(folder)
    code, out, err = stoker("profile", "cfg.yaml", *SHORT)
    assert code == 0, err
    assert everything_in(folder) == before
    lines = out.splitlines()
    assert lines[0] == "4 steps after 1 warm-up steps"
    for phase in ("data", "forward", "backward", "update", "hooks", "writers", "other"):
        assert any(line.startswith(phase) for line in lines), phase
    for hook in ("Loss", "Sizes", "Checkpoint", "Write(JsonLines)"):
        assert any(line.startswith(hook) for line in lines), hook
    for guard in ("identity", "hidden state, per save", "heartbeat, per check", "lease, at"):
        assert any(line.startswith(guard) for line in lines), guard
    assert lines[-2] == ""
    assert len(lines[-1]) > 20
    assert "\x1b" not in out


@pytest.mark.slow
def test_numbers_and_trace_go_to_the_paths_given(stoker, folder):
    before = everything_in(folder)
    code, out, err = stoker(
        *("profile", "cfg.yaml", "model.width=16", *SHORT),
        "--output",
        "a/c.json",
        "--trace",
        "t.json",
    )
    assert code == 0, err
    assert {str(path.relative_to(folder)) for path in everything_in(folder) - before} == {
        *("a", "a/c.json", "t.json")
    }
    assert json.loads((folder / "a/c.json").read_text())["steps"] == 4
    assert json.loads((folder / "t.json").read_text())["traceEvents"]
    assert "trace: t.json" in out


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["cgf.yaml"], "did you mean 'cfg.yaml'?"),
        (["cfg.yaml", "modle.width=3"], "use 'model."),
        (["cfg.yaml", "model.widht=3"], "did you mean 'width'?"),
        (["cfg.yaml", "--steps", "0"], "--steps must be at least 1, got 0"),
        (["cfg.yaml", "--warmup", "-1"], "--warmup must be at least 0, got -1"),
        (["cfg.yaml", "--nproc", "0"], "nproc must be at least 1, got 0"),
        (["cfg.yaml", "--tarce", "x"], "did you mean '--trace'?"),
        (["cfg.yaml", "+hooks=CostReport"], "the config already has a CostReport hook"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_starts(stoker, folder, argv, words):
    before = everything_in(folder)
    code, out, err = stoker("profile", *argv)
    assert (code, out) == (2, "")
    assert words in err
    assert everything_in(folder) == before


def test_on_a_terminal_the_tables_are_drawn_with_every_number_in_them(capsys, monkeypatch):
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "40")
    head = ["hook", "point", "calls", "µs/call", "operations", "syncs", "collectives"]
    name = "Write(JsonLines, TensorBoard)"
    text = table_text([head, [name, "after_step", "50", "1,234.5", "6", "7", "8"]], text_columns=2)
    plain = re.sub(r"\x1b\[[0-9;]*m", "", text)
    assert plain.split() == [*head, *name.split(), "after_step", "50", "1,234.5", "6", "7", "8"]


@pytest.mark.slow
def test_two_processes_are_reported_by_the_first(stoker, folder):
    before = everything_in(folder)
    code, out, err = stoker("profile", "cfg.yaml", *SHORT, "--nproc", "2")
    assert code == 0, err
    assert out.startswith("4 steps after 1 warm-up steps, rank 0 of 2\n")
    assert out.count("forward") == 1
    assert any(line.startswith("Agreement") for line in out.splitlines())
    assert everything_in(folder) == before


STOPS = """
import os, signal
from stoker import Hook

class Stops(Hook):
    def after_step(self, run):
        {}
"""


def test_ctrl_c_ends_it_with_130(stoker, folder, temporary):
    (folder / "stops.py").write_text(STOPS.format("os.kill(os.getpid(), signal.SIGINT)"))
    code, out, err = stoker("profile", "cfg.yaml", "+hooks={_target_: stops.Stops}")
    assert (code, out) == (130, "")
    assert "stopped by Ctrl-C before the profile was complete" in err
    assert not list(temporary.iterdir())


def test_a_run_that_ends_too_early_says_why(stoker, folder):
    (folder / "stops.py").write_text(STOPS.format("run.stop('enough')"))
    code, out, err = stoker("profile", "cfg.yaml", "+hooks={_target_: stops.Stops}")
    assert (code, out) == (1, "")
    assert "the run ended too early: enough" in err


@pytest.mark.parametrize("how", ["run.dir=null", "run.resume=must", "run.epochs=1"])
def test_whatever_the_run_section_says_it_profiles(stoker, how):
    code, _, err = stoker("profile", "cfg.yaml", how, *SHORT)
    assert code == 0, err


def test_a_scheduler_by_epochs_is_profiled_too(stoker):
    scheduler = "lr_scheduler={_target_: torch.optim.lr_scheduler.CosineAnnealingLR}"
    code, _, err = stoker("profile", "cfg.yaml", scheduler, "run.lr_step=epoch", *SHORT)
    assert code == 0, err


def costs(rows=(), rest=None, **phases):
    shares = dict.fromkeys(("data", "backward", "update", "hooks", "writers", "other"), 0.0)
    shares |= {"forward": 1.0 - sum(phases.values())} | phases
    return Costs([*rows], shares, [0.1] * 10, 10, rest or Counts(), 5, 1, False)


def row(hook, seconds, syncs=0):
    found = CostRow(hook, "after_step", "hooks", counted=10, counts=Counts(10, syncs))
    for _ in range(10):
        found.timer.add(seconds / 10)
    return found


@pytest.mark.parametrize(
    ("found", "advised"),
    [
        (costs(data=0.62), "data takes 62% of a step: use worker processes"),
        (costs(update=0.5), "the update takes 50% of a step: try SGD(…, fused=True)"),
        (costs([row("Mine", 0.3)], hooks=0.3), "hook 'Mine' takes 30% of a step"),
        (
            costs([row("Mine", 0.01, 20)]),
            "hook 'Mine' synchronizes with the device 2 times per step",
        ),
        (costs([row("Write", 0.01, 1)]), "nothing stands out: forward takes 100% of a step"),
        (costs(rest=Counts(90, 30)), "the step itself synchronizes with the device 3 times"),
        (costs([row("Mine", 0.2)], hooks=0.2, data=0.3), "data takes 30% of a step"),
    ],
)
def test_the_sentence_names_the_largest_cost_that_can_be_avoided(found, advised):
    model = net()
    assert advice(found, Engine(model, sgd(model))).startswith(advised)
