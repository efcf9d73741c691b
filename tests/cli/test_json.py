"""What programs read: --json, --quiet, exit codes, status and wait."""

import json
import time
from pathlib import Path

import jsonschema
import pytest

from stoker import Trainer, hooks
from stoker.cli import main
from stoker.cli.ckpt import _ACTIONS
from stoker.cli.data import _ACTIONS as DATA_ACTIONS
from stoker.cli.main import _COMMANDS
from stoker.cli.output import plain
from stoker.cli.schema import load
from support.toys import batches, engine

CHECK = jsonschema.Draft202012Validator(load())


@pytest.fixture
def stoker(folder, capsys):
    """Runs a command; its exit code, stdout and stderr."""

    def stoker(*argv):
        capsys.readouterr()
        try:
            code = main([str(word) for word in argv])
        except SystemExit as end:
            code = end.code
        said = capsys.readouterr()
        return code, said.out, said.err

    return stoker


@pytest.fixture
def records(stoker):
    """Runs a command with --json; its exit code and its records, which match the schema."""

    def records(*argv):
        code, out, _ = stoker(*argv, "--json")
        found = [json.loads(line) for line in out.splitlines()]
        for one in found:
            CHECK.validate(one)
        return code, found

    return records


CASES = {
    "train": ("cfg.yaml run.epochs=2 run.checkpoint.every=1ep", ["epoch", "epoch", "train"]),
    "evaluate": ("cfg.yaml", ["evaluate"]),
    "predict": ("cfg.yaml -o out.csv", ["predict"]),
    "explain": ("cfg.yaml", ["explain"]),
    "lr-find": ("cfg.yaml --steps 8", ["lr_find"]),
    "profile": ("cfg.yaml --steps 2 --warmup 1", ["profile"]),
    "status": ("runs", ["status"]),
    "wait": ("runs/cfg", ["status"]),
    "report": ("runs/cfg -o r.md", ["report"]),
    "config": ("cfg.yaml", ["config"]),
    "env": ("", ["env"]),
    "new": ("made", ["new"]),
    "schema": ("", ["schema"]),
    "hooks": ("EMA", ["hook"]),
    "metrics": ("F1Score", ["metric"]),
    "ckpt ls": ("runs/cfg", ["checkpoint"] * 3),
    "ckpt verify": ("runs/cfg", ["verified"] * 3),
    "ckpt show": ("runs/cfg", ["checkpoint_contents"]),
    "ckpt export": ("runs/cfg -o w.safetensors", ["export"]),
    "ckpt import": ("w.safetensors -o v.safetensors", ["import"]),
    "data ls": ("some.jsonl", ["data_file"]),
    "data index": ("some.jsonl", ["data_file"]),
    "data check": ("some.jsonl", ["data_check"]),
    "ckpt prune": ("runs/cfg --keep 1 --dry-run", ["prune"]),
}
ELSEWHERE = {"prove", "board", "run", "ckpt", "ckpt diff", "data"}


@pytest.mark.slow
def test_every_command_prints_records_that_match_the_schema(records):
    Path("some.jsonl").write_text('{"a": 1}\n')
    actions = {f"ckpt {name}" for name in _ACTIONS} | {f"data {name}" for name in DATA_ACTIONS}
    assert CASES.keys() | ELSEWHERE == _COMMANDS.keys() | actions
    for name, (words, kinds) in CASES.items():
        code, found = records(*name.split(), *words.split())
        assert (code, [one["record"] for one in found]) == (0, kinds), name
    code, (diff,) = records(
        "ckpt", "diff", *sorted(Path("runs/cfg/checkpoints").glob("step*"))[-2:]
    )
    assert (code, diff["same"]) == (1, False)
    assert records("ckpt", "diff", "runs/cfg", "runs/cfg")[1][0]["same"] is True
    code, (goodput,) = records("report", "--goodput", "runs/cfg")
    assert 0 < goodput["share"] <= 1
    assert records("config", "cfg.yaml", "--why", "optimizer.lr")[1][0]["key"] == "optimizer.lr"
    assert len(records("hooks")[1]) > 10


@pytest.mark.slow
def test_the_record_of_a_training_has_its_folder_and_results(records):
    code, (*epochs, train) = records("train", "cfg.yaml", "run.epochs=2")
    assert code == 0
    assert [one["epoch"] for one in epochs] == [1, 2]
    assert epochs[-1] == {
        "record": "epoch",
        "run": "runs/cfg",
        "epochs": 2,
        "total_steps": train["step"],
        **{key: train[key] for key in ("epoch", "step", "metrics")},
    }
    assert (train["run"], train["state"], train["epoch"]) == ("runs/cfg", "finished", 2)
    assert train["metrics"].keys() >= {"train/loss", "val/loss"}
    code, (status,) = records("status", "runs/cfg")
    assert (status["state"], status["step"], status["epoch"]) == ("finished", train["step"], 2)
    assert status["metrics"]["val/loss"] == pytest.approx(train["metrics"]["val/loss"])


@pytest.mark.slow
@pytest.mark.process
def test_a_proof_is_a_record(records):
    code, (proof,) = records("prove", "cfg.yaml", "run.epochs=1", "--kills", "1")
    assert (code, proof["record"], proof["same"]) == (0, "prove", True)


@pytest.mark.slow
@pytest.mark.process
def test_ranks_print_each_record_and_each_line_once(folder, capfd):
    command = ["train", "cfg.yaml", "run.epochs=1", "--nproc", "2"]
    assert main([*command, "run.progress=true", "--json"]) == 0
    out, err = capfd.readouterr()
    epoch, train = map(json.loads, out.splitlines())
    CHECK.validate(epoch)
    CHECK.validate(train)
    assert (epoch["epoch"], train["run"]) == (1, "runs/cfg")
    assert err.count("epoch 1/1") == 1
    assert main([*command, "run.name=text", "-q"]) == 0
    out, err = capfd.readouterr()
    assert out == "the run is in runs/text\n"
    assert "epoch" not in err


def test_the_board_says_where_it_is(records, folder, monkeypatch):
    (folder / "runs").mkdir()

    def serve(root, listener, token, ready):
        listener.close()
        ready()

    monkeypatch.setattr("stoker.board.serve.serve", serve)
    _, (board,) = records("board", "--port", "0")
    assert board["url"].startswith("http://127.0.0.1:")


def test_the_output_of_a_script_goes_to_stderr(folder, stoker):
    (folder / "script.py").write_text("import sys\nprint('hello', *sys.argv[1:])\n")
    code, out, err = stoker("run", "--json", "script.py", "--json")
    assert code == 0
    assert err == "hello --json\n"
    CHECK.validate(json.loads(out))
    assert stoker("run", "script.py", "--json")[1] == "hello --json\n"


ERRORS = {
    "train cfg.yaml optimizer.learning_rate=1": 2,
    "train cfg.yaml --max-epochs=3": 2,
    "train nothing.yaml": 2,
    "trian": 2,
    "train": 2,
    "train cfg.yaml --nproc two": 2,
    "ckpt ls nothing": 2,
    "ckpt": 2,
    "status nothing": 2,
    "wait nothing": 2,
    "hooks EMAA": 2,
}


@pytest.mark.parametrize("words", ERRORS)
def test_an_error_is_a_record_and_a_line(records, stoker, words):
    code, out, err = stoker(*words.split(), *(["--json"] if words != "ckpt" else []))
    assert code == ERRORS[words]
    if words == "ckpt":
        return
    assert "stoker: " in err
    error = json.loads(out)
    CHECK.validate(error)
    assert error["record"] == "error"
    assert error["code"] == code
    assert all(fault in err for fault in error["faults"])


def test_an_error_of_the_users_code_is_a_record_and_a_traceback(folder, capsys):
    (folder / "bad.py").write_text("1 / 0\n")
    with pytest.raises(ZeroDivisionError):
        main(["run", "--json", "bad.py"])
    error = json.loads(capsys.readouterr().out)
    assert (error["record"], error["code"]) == ("error", 1)
    assert error["faults"] == ["ZeroDivisionError: division by zero"]


def test_every_record_says_which_values_are_not_finite():
    values = {"a": [float("nan"), {"b": float("-inf")}], "c": Path("x")}
    assert plain(values) == {"a": ["nan", {"b": "-inf"}], "c": "x"}
    record = {"record": "evaluate", "weights": "w", "metrics": {"loss": "nan"}}
    CHECK.validate(record)
    with pytest.raises(jsonschema.ValidationError):
        CHECK.validate(record | {"metrics": {"loss": "low"}})


@pytest.mark.slow
def test_quiet_leaves_results_warnings_and_errors(stoker):
    code, out, err = stoker("train", "cfg.yaml", "run.epochs=1", "run.progress=true", "--quiet")
    assert (code, out, err) == (0, "the run is in runs/cfg\n", "")
    code, out, err = stoker("evaluate", "cfg.yaml", "-q")
    assert code == 0
    assert out.startswith("val/loss ")
    assert err == ""


# status and wait


def fit(folder, **until):
    used = [hooks.Loss(), hooks.Write(events_writer(), every=1), hooks.LogFile()]
    Trainer(engine(), used, run_dir=folder).fit(batches(), **until)


def events_writer():
    from stoker import events

    return events.JsonLines()


def end_log_with(folder, line):
    log = folder / "log.txt"
    kept = log.read_text().splitlines()[:-1]
    log.write_text("\n".join([*kept, *([f"2026-01-02 03:04:05 {line}"] if line else [])]) + "\n")


ENDS = {
    "INFO finished (step 5)": ("finished", 0),
    "ERROR the run failed at step 3": ("failed", 1),
    "INFO interrupted by Ctrl-C (step 3)": ("stopped", 130),
    "INFO early stopping: val/loss has not improved (step 3)": ("stopped", 0),
    "INFO preempted by SIGTERM (step 3)": ("preempted", 143),
    "": ("running", 124),
}


@pytest.mark.parametrize("line", ENDS)
def test_wait_returns_how_the_run_ended(folder, records, line):
    fit(folder / "run", epochs=1)
    end_log_with(folder / "run", line)
    state, expected = ENDS[line]
    code, (status,) = records("wait", "run", "--timeout", "0")
    assert (status["state"], code) == (state, expected)
    assert records("status", "run")[0] == 0


def test_a_run_that_died_is_killed(folder, records, monkeypatch):
    fit(folder / "run", epochs=1)
    end_log_with(folder / "run", "")
    later = time.time() + 1e6
    monkeypatch.setattr("stoker.rundir.status.time.time", lambda: later)
    assert records("wait", "run")[0] == 137


def test_wait_looks_until_the_run_has_ended(folder, records, monkeypatch):
    looks = []

    def sleep(seconds):
        looks.append(seconds)
        if len(looks) == 1:
            fit(folder / "run", epochs=1)
            end_log_with(folder / "run", "")
        if len(looks) == 3:
            end_log_with(folder / "run", "INFO finished (step 5)")

    monkeypatch.setattr("stoker.cli.wait.time.sleep", sleep)
    code, (status,) = records("wait", "run", "--start-timeout", "999", "--interval", "7")
    assert (code, status["state"]) == (0, "finished")
    assert looks == [7, 7, 7]


def test_status_shows_progress_metrics_and_a_folder_of_runs(folder, stoker):
    fit(folder / "runs" / "one", epochs=2)
    fit(folder / "runs" / "two", max_steps=3)
    code, out, _ = stoker("status")
    assert code == 0
    lines = out.splitlines()
    assert lines[0] == "runs/one: finished"
    assert lines[1].startswith("  step 10/10  epoch ")
    assert lines[2] == "  latest values; of training, means over the last steps:"
    assert "train/loss" in lines[3]
    assert lines[4] == "  last epoch; of training, means over all its samples:"
    assert "train/loss" in lines[5]
    assert "runs/two: finished" in lines


@pytest.mark.parametrize("option", ["--timeout=-1", "--interval=-1", "--start-timeout=nan"])
def test_wait_rejects_a_negative_number_of_seconds(folder, stoker, option):
    code, _, err = stoker("wait", "run", option)
    assert code == 2
    assert option.partition("=")[0] in err


# Help


def test_help_is_short_and_help_all_has_the_fields_of_run(stoker):
    code, short, _ = stoker("train", "--help")
    assert code == 0
    assert "run.validate_every" not in short
    assert "--help-all" in short
    assert len(short.splitlines()) < 60
    code, long, _ = stoker("train", "--help-all")
    assert code == 0
    assert "run.validate_every" in long
    assert all(line in long for line in short.splitlines()[:10])


def test_records_and_arguments_are_documented():
    page = (Path(__file__).parents[2] / "docs" / "command-line.md").read_text()
    for name in CHECK.schema["$defs"].keys() - {"number"}:
        assert f"`{name}`" in page, name
