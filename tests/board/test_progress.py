"""Steps never exceed their total, and a run has the same state wherever it is shown."""

import json
from contextlib import suppress

import pytest

from stoker import Trainer, hooks
from stoker.hooks import Callback
from stoker.report.document import read_facts
from stoker.rundir.reader import RunReader
from stoker.rundir.states import ending_of
from support.toys import batches, engine


def watched(folder, *more, ledger=True, **how):
    """A trainer, and what a reader of its folder sees after every step: step, total, epochs."""
    seen = []

    def read(run):
        reader = RunReader(folder)
        reader.read_metrics()
        status = reader.status()
        seen.append((run.step, status.step, status.total, status.epoch, status.epochs))

    used = [hooks.Loss(), hooks.Write(jsonl(), every=1), hooks.LogFile(), hooks.Checkpoint()]
    used += [hooks.Ledger(every=0)] if ledger else []
    look = Callback(priority=99, after_step=read, after_epoch=read)
    look.name = "look"
    return Trainer(engine(), [*used, *more, look], run_dir=folder, **how), seen


def jsonl():
    from stoker import events

    return events.JsonLines()


def more_epochs(folder, **how):
    trainer, seen = watched(folder, **how)
    trainer.fit(batches(), epochs=2)
    trainer.fit(batches(), epochs=5)
    return trainer, seen


def other_data(folder, **how):
    trainer, seen = watched(folder, **how)
    trainer.fit(batches(), epochs=3)
    trainer.fit(batches()[:2], epochs=5)
    return trainer, seen


def resumed_with_more(folder, **how):
    watched(folder, **how)[0].fit(batches(), epochs=2)
    trainer, seen = watched(folder, **how)
    trainer.fit(batches(), epochs=4)
    return trainer, seen


def resumed_with_fewer(folder, **how):
    watched(folder, **how)[0].fit(batches(), epochs=9, max_steps=7)
    trainer, seen = watched(folder, **how)
    trainer.fit(batches(), epochs=2)
    return trainer, seen


def accumulated(folder, **how):
    trainer, seen = watched(folder, accumulate=2, **how)
    trainer.fit(batches(), epochs=3)
    return trainer, seen


def accumulation_schedule(folder, **how):
    trainer, seen = watched(folder, hooks.AccumulationSchedule({1: 4, 2: 1}), **how)
    trainer.fit(batches(), epochs=3)
    return trainer, seen


def by_steps(folder, **how):
    trainer, seen = watched(folder, **how)
    trainer.fit(batches(), max_steps=7)
    return trainer, seen


CASES = [more_epochs, other_data, resumed_with_more, resumed_with_fewer, accumulated,
         accumulation_schedule, by_steps]  # fmt: skip


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("ledger", [True, False], ids=["with a ledger", "without"])
def test_no_more_steps_are_done_than_there_are(tmp_path, case, ledger):
    trainer, seen = case(tmp_path / "run", ledger=ledger)
    for _, step, total, epoch, epochs in seen:
        assert total is None or step <= total
        assert epochs is None or epoch <= epochs
    reader = RunReader(tmp_path / "run")
    reader.read_metrics()
    status = reader.status()
    assert status.step == trainer.run.step
    if status.state == "finished":
        assert status.total == status.step
    if ledger and case is not accumulation_schedule:
        last = [row for row in seen if row[0] == status.step]
        assert last[-1][2] == trainer.run.final_step


def test_the_end_of_a_second_fit_is_known_while_it_runs(tmp_path):
    trainer, seen = other_data(tmp_path / "run")
    assert trainer.run.step == trainer.run.final_step == 3 * 5 + 2 * 2
    assert [total for step, _, total, *_ in seen if step > 15] == [19] * 6
    assert trainer.run.total_steps == 10  # of a run with this data from the start


class TrialPruned(Exception):
    """As Optuna raises it."""


def prune(run):
    if run.step == 3:
        raise TrialPruned("trial 4")


ENDS = {
    "finished": (None, "finished", ""),
    "hook": (lambda run: run.stop("early stopping") if run.step == 3 else None,
             "stopped", "early stopping"),
    "pruned": (prune, "stopped", "pruned: trial 4"),
    "error": (lambda run: 1 / 0 if run.step == 3 else None, "failed",
              "ZeroDivisionError: division by zero"),
}  # fmt: skip


@pytest.mark.parametrize("ledger", [True, False], ids=["with a ledger", "without"])
@pytest.mark.parametrize("name", ENDS)
def test_a_run_has_one_state_everywhere(tmp_path, name, ledger):
    act, state, why = ENDS[name]
    trainer, _ = watched(tmp_path, Callback(after_step=act or (lambda run: None)), ledger=ledger)
    with suppress(TrialPruned, ZeroDivisionError):
        trainer.fit(batches(), epochs=1)
    status = RunReader(tmp_path).status()
    assert (status.state, status.why) == (state, why)
    assert ending_of(trainer.run.stop_reason, trainer.run.error) == (state, why)
    facts = read_facts(tmp_path, quick=True)
    assert facts.status.state == state
    if ledger:
        assert (facts.events[-1].kind, facts.events[-1].text) == (state, why)


def test_an_evaluation_that_fails_leaves_a_finished_run_finished(tmp_path):
    trainer, _ = watched(tmp_path, Callback(before_val=lambda run: 1 / 0), ledger=False)
    trainer.fit(batches(), epochs=1)
    with pytest.raises(ZeroDivisionError):
        trainer.evaluate(batches())
    assert "evaluate failed" in (tmp_path / "log.txt").read_text()
    assert RunReader(tmp_path).status().state == "finished"


def test_the_best_result_is_the_one_that_a_script_monitors(tmp_path):
    from stoker.board.runs import Runs

    odd = Callback(after_val=lambda run: run.record("val/oddness", [5.0, 9.0, 7.0][run.epoch - 1]))
    checkpoint = hooks.Checkpoint(best="val/oddness", mode="max")
    used = [hooks.Loss(), odd, checkpoint, hooks.Write(jsonl(), every=1)]
    Trainer(engine(), used, run_dir=tmp_path / "one").fit(batches(), batches(), epochs=3)
    runs = Runs(tmp_path)
    runs.refresh(60)
    expected = {"name": "val/oddness", "value": 9.0, "step": 10, "mode": "max"}
    assert runs["one"].best() == expected


def test_a_line_of_the_ledger_has_the_limits_of_the_fit(tmp_path):
    trainer, _ = watched(tmp_path)
    trainer.fit(batches(), epochs=2)
    rows = [json.loads(line) for line in (tmp_path / "ledger.jsonl").read_text().splitlines()]
    assert {(row["epochs"], row["total_steps"]) for row in rows} == {(2, 10)}
