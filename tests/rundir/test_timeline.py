"""The time line of a run, and the settings by which runs are compared."""

import pytest

from stoker import hooks
from stoker.rundir.reader import RunReader, monitored_result
from stoker.rundir.settings import column_keys, settings_of
from stoker.rundir.timeline import events_of, timeline_of
from support.board_gallery import ledger_line, restarted
from support.toys import batches, trainer

NOTHING = (0, 0, 0, 0, 0, 0)


def attempts_of(folder, *lines):
    (folder / "ledger.jsonl").write_text("".join(lines))
    return RunReader(folder).attempts()


def test_restarts_kills_and_rollbacks_are_events(tmp_path):
    reader = RunReader(restarted(tmp_path))
    events = events_of(reader.attempts(), "finished")
    assert [(one.kind, one.step) for one in events] == [
        ("start", 0), ("killed", 250), ("restart", 200), ("rollback", 200), ("preempted", 420),
        ("restart", 420), ("finished", 600),
    ]  # fmt: skip
    assert [one.text for one in events if one.kind == "restart"] == [
        "restart 1 by the launcher",
        "restart 2 by the launcher",
    ]
    assert [one.time for one in events] == sorted(one.time for one in events)


def test_the_time_of_attempts_adds_up_to_that_of_the_run(tmp_path):
    found = timeline_of(RunReader(restarted(tmp_path)).attempts(), "finished")
    spent = [sum(one["spent"].values()) for one in found["attempts"]]
    assert spent == pytest.approx([one["seconds"] for one in found["attempts"]])
    assert sum(spent) == pytest.approx(sum(found["seconds"].values()))
    assert found["attempts"][0]["spent"]["repeated work"] > 0


def test_the_fits_of_a_trainer_are_no_restarts(tmp_path):
    one = trainer(hooks.Ledger(), run_dir=tmp_path)
    one.fit(batches(), epochs=1)
    one.fit(batches(), epochs=2)
    kinds = [event.kind for event in events_of(RunReader(tmp_path).attempts(), "finished")]
    assert kinds == ["start", "finished", "fit", "finished"]


def test_a_step_that_goes_back_within_an_attempt_is_a_rollback(tmp_path):
    lines = [
        ledger_line("a", 10.0, 0, NOTHING, event="begin", pid=1),
        ledger_line("a", 20.0, 30, NOTHING),
        ledger_line("a", 30.0, 12, NOTHING),
    ]
    events = events_of(attempts_of(tmp_path, *lines), "running")
    assert [(one.kind, one.step) for one in events] == [("start", 0), ("rollback", 12)]
    assert events_of(attempts_of(tmp_path, *lines), "dead")[-1].kind == "killed"


def test_a_ledger_is_read_on_from_where_it_was_left(tmp_path):
    path = tmp_path / "ledger.jsonl"
    first = ledger_line("a", 10.0, 0, NOTHING, event="begin", pid=1)
    path.write_text(first + "no JSON\n" + first[:20])
    reader = RunReader(tmp_path)
    assert [len(one.entries) for one in reader.attempts()] == [1]
    path.write_text(first + "no JSON\n" + first)
    assert [len(one.entries) for one in reader.attempts()] == [2]
    assert [len(one.entries) for one in reader.attempts()] == [2]
    assert reader.faults == ["ledger.jsonl has 1 line that cannot be read"]
    path.write_text(first)
    assert [len(one.entries) for one in reader.attempts()] == [1]


SCRIPT = {"recorded_by": "train.py", "params.lr": 0.1, "optimizer.lr": 0.1, "model.type": "Net",
          "optimizer.params": "2 parameters #abc", "fc.weight": "float32[8,4]"}  # fmt: skip


def test_columns_are_the_parameters_of_scripts_and_what_differs():
    other = SCRIPT | {"params.lr": 0.2, "optimizer.lr": 0.2, "optimizer.params": "2 parameters #d",
                      "fc.weight": "float32[9,4]", "model.type": "Wide"}  # fmt: skip
    assert column_keys([SCRIPT]) == ["params.lr"]
    assert column_keys([SCRIPT, other]) == ["params.lr", "model.type"]
    configs = [{"optimizer.lr": 1, "a": 1}, {"optimizer.lr": 2, "a": 1}]
    assert column_keys(configs) == ["optimizer.lr"]
    assert column_keys([*configs, SCRIPT, other]) == ["params.lr", "optimizer.lr", "model.type"]
    assert set(settings_of(SCRIPT)) == {"params.lr", "optimizer.lr", "model.type"}


def test_the_monitored_result_is_found_in_the_run_section_and_among_hooks():
    assert monitored_result({}) == ("", None)
    assert monitored_result({"run.checkpoint.best": "val/x", "run.checkpoint.mode": "max"}) == (
        "val/x",
        "max",
    )
    assert monitored_result({"hooks.1.best": "val/y", "hooks.1.mode": 3}) == ("val/y", None)
    assert monitored_result({"hooks.1.best": 4}) == ("", None)


def test_processes_that_come_and_go_are_events(tmp_path):
    change = {"event": "members", "generation": 1, "left": [1], "joined": [], "members": [0, 2]}
    change["ranks"] = [[0, 2], [3, 3]]
    lines = [
        ledger_line("a", 10.0, 0, NOTHING, event="begin", pid=1, processes=3),
        ledger_line("a", 20.0, 30, (8, 0, 0, 0, 0, 0), **change, seconds=1.5, members_lost=1.25),
    ]
    attempts = attempts_of(tmp_path, *lines)
    left = next(one for one in events_of(attempts, "running") if one.kind == "left")
    assert (left.step, left.text) == (
        30,
        "process 1; 2 processes finished the next step after 1.5 s; "
        "logical ranks: 0-2 on 0, 3 on 2",
    )
    assert attempts[0].processes == 2
    assert timeline_of(attempts, "running")["seconds"]["lost with processes"] == 1.25
