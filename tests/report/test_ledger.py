"""The ledger: what the time of a run goes to, over attempts that were killed."""

import json
import signal

import pytest

from stoker import Trainer, hooks
from stoker.hooks import Callback, Ledger
from stoker.report import goodput_of
from stoker.rundir.reader import MEASURED, Attempt, Entry, RunReader
from support import killable_run as killed
from support.killable_run import STEPS, attempt
from support.toys import batches, engine, trainer


def rows(folder):
    return [json.loads(line) for line in (folder / "ledger.jsonl").read_text().splitlines()]


def account(folder):
    reader = RunReader(folder)
    attempts = reader.attempts()
    assert reader.faults == []
    return goodput_of(attempts)


def spent(row):
    return {kind: row[kind] for kind in ("startup", "train", "data", "save", "eval", "other")}


class Clock:
    """Seconds that pass only when someone says so."""

    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        return self.now

    def wait(self, seconds):
        def pass_by(run):
            self.now += seconds

        return pass_by


@pytest.fixture
def clock(monkeypatch):
    trainer(Ledger()).fit(batches(4), epochs=1)  # from now on start-up counts from the fit
    clock = Clock()
    for module in (
        "stoker.hooks.ledger",
        "stoker.hooks.checkpoint",
        "stoker.resume.manager",
        "stoker.data.feeder",
    ):
        monkeypatch.setattr(f"{module}.perf_counter", clock)
    return clock


def test_every_second_of_an_attempt_goes_to_something(tmp_path, clock):
    class Slow(list):
        def __iter__(self):
            for batch in super().__iter__():
                clock.now += 2
                yield batch

    class SlowSaves(hooks.Checkpoint):
        def state_dict(self):
            clock.now += 100
            return super().state_dict()

    points = {
        "before_train": 7, "before_step": 3, "after_val_step": 4,
        "after_epoch": 30, "after_train": 50,
    }  # fmt: skip
    slow = Callback(**{point: clock.wait(seconds) for point, seconds in points.items()})
    checkpoint = SlowSaves()
    used = [slow, checkpoint, Ledger(checkpoint)]
    Trainer(engine(), used, run_dir=tmp_path).fit(Slow(batches()), batches(), epochs=2)
    last = rows(tmp_path)[-1]
    assert (last["event"], last["end"], last["step"]) == ("end", "finished", 10)
    assert spent(last) == {
        "startup": 7,
        "train": 2 * 5 * 3,
        "data": 2 * 5 * 2,
        "save": 3 * 100,  # before the first step, and after each epoch
        "eval": 2 * 5 * 4,
        "other": 2 * 30 + 50,
    }


@pytest.fixture
def noted(monkeypatch):
    """The training of `killable_run`, with a ledger that notes every step and synchronous saves.

    So it is known which checkpoint a killed attempt has left.
    """
    made = killed.trainer

    def with_ledger(folder, *, halt=(), **how):
        trainer, *loaders = made(folder, halt=[Ledger(every=0), *halt], **how)
        checkpoint = next(hook for hook in trainer.hooks if isinstance(hook, hooks.Checkpoint))
        checkpoint.must_wait = lambda run: True
        return trainer, *loaders

    monkeypatch.setattr(killed, "trainer", with_ledger)


@pytest.mark.process
@pytest.mark.usefixtures("noted")
def test_steps_after_the_last_checkpoint_of_a_killed_attempt_were_work_done_again(tmp_path):
    run = tmp_path / "run"
    assert attempt(run, ("after_step", 6), every="4st") is None  # killed at step 6, saved at 4
    assert attempt(run, ("before_update", 7), every="4st") is None  # at step 10, saved at 8
    assert attempt(run, every="4st") is not None
    found = account(run)
    assert [(one.first_step, one.last_step, one.end) for one in found.attempts] == [
        (0, 6, None),
        (4, 10, None),
        (8, STEPS, "finished"),
    ]
    assert found.repeated_steps == 4
    by_hand = 0.0
    for number, kept in ((0, 4), (1, 8)):
        at = {entry.step: sum(entry.spent.values()) for entry in found.attempts[number].entries}
        by_hand += max(at.values()) - at[kept]
    assert found.seconds["again"] == pytest.approx(by_hand, rel=0.2)
    assert found.seconds["again"] > 0
    assert found.total == pytest.approx(sum(one.seconds for one in found.attempts))
    assert 0 < found.share < 1
    assert len({one.id for one in found.attempts}) == len({one.pid for one in found.attempts}) == 3


@pytest.mark.slow
@pytest.mark.usefixtures("noted")
def test_a_run_that_exits_on_request_does_nothing_again(tmp_path):
    run = tmp_path / "run"
    assert attempt(run, ("after_step", 6), signal.SIGTERM, every="4st") is None
    assert attempt(run, every="4st") is not None
    found = account(run)
    assert [(one.last_step, one.end) for one in found.attempts] == [
        (6, "preempted"),
        (STEPS, "finished"),
    ]
    assert (found.repeated_steps, found.seconds["again"]) == (0, 0)


def test_an_attempt_that_goes_back_further_makes_all_between_work_done_again():
    def made(id, *entries):
        kinds = dict.fromkeys(MEASURED, 0.0)
        return Attempt(id, [Entry(0.0, at, kinds | {"train": s}) for at, s in entries])

    first = made("a", (0, 0.0), (12, 12.0))
    second = made("b", (10, 0.0), (14, 4.0))
    third = made("c", (4, 0.0), (20, 16.0))
    found = goodput_of([first, second, third])
    assert found.repeated_steps == 8 + 4
    assert found.seconds["again"] == pytest.approx(12)
    assert found.seconds["train"] == pytest.approx(4 + 16)


def test_a_torn_line_is_passed_over_and_the_next_attempt_begins_a_new_one(tmp_path):
    used = lambda: [hooks.Checkpoint(), Ledger()]
    Trainer(engine(), used(), run_dir=tmp_path).fit(batches(), epochs=1)
    complete = (tmp_path / "ledger.jsonl").read_bytes()
    (tmp_path / "ledger.jsonl").write_bytes(complete[:-20])
    Trainer(engine(), used(), run_dir=tmp_path).fit(batches(), epochs=2)
    assert (tmp_path / "ledger.jsonl").read_bytes().startswith(complete[:-20] + b"\n{")
    reader = RunReader(tmp_path)
    attempts = reader.attempts()
    assert reader.faults == ["ledger.jsonl has 1 line that cannot be read"]
    assert [(one.first_step, one.end) for one in attempts] == [(0, None), (5, "finished")]


def test_lines_come_by_the_clock_and_not_by_the_step(tmp_path):
    run = Trainer(engine(), [Ledger(every=100)], run_dir=tmp_path)
    run.fit(batches(), batches(), epochs=4)
    assert [row.get("event") for row in rows(tmp_path)] == ["begin", "end"]


def test_a_run_that_fails_says_why_and_one_that_fails_at_once_leaves_nothing(tmp_path):
    def fail(run):
        raise RuntimeError("no\nmore")

    late = Callback(after_step=lambda run: fail(run) if run.step == 3 else None)
    with pytest.raises(RuntimeError):
        Trainer(engine(), [late, Ledger()], run_dir=tmp_path / "late").fit(batches(), epochs=1)
    last = rows(tmp_path / "late")[-1]
    assert (last["end"], last["why"]) == ("failed", "RuntimeError: no")
    used = [Callback(before_step=fail), *hooks.default(progress=False)]
    with pytest.raises(RuntimeError):
        Trainer(engine(), used, run_dir=tmp_path / "early").fit(batches(), epochs=1)
    assert not (tmp_path / "early").exists()


def test_a_ledger_that_cannot_be_written_ends_no_run(tmp_path, caplog):
    in_the_way = Callback(before_train=lambda run: (run.dir / "ledger.jsonl").mkdir(parents=True))
    run = Trainer(engine(), [in_the_way, Ledger(every=0)], run_dir=tmp_path / "run")
    run.fit(batches(), epochs=1)
    assert run.run.step == 5
    assert caplog.text.count("ledger.jsonl' cannot be written: Is a directory") == 1


def test_looking_at_a_model_writes_no_ledger(tmp_path):
    run = Trainer(engine(), [Ledger()], run_dir=tmp_path / "run")
    run.evaluate(batches())
    run.predict([x for x, _ in batches()])
    assert not (tmp_path / "run").exists()


def test_the_defaults_keep_a_ledger_that_knows_of_saves(tmp_path):
    Trainer(engine(), hooks.default(progress=False), run_dir=tmp_path).fit(batches(), epochs=1)
    assert rows(tmp_path)[-1]["save"] > 0
