"""What hooks cost is found, held against budgets, and costs nothing when it is not asked for."""

import json
from time import perf_counter

import pytest
import torch

from stoker import Hook, Layout, Step, Trainer, hooks
from stoker.core.op_counter import Counts, counted
from stoker.events import JsonLines
from stoker.events.writers.console import format_table
from stoker.hooks import Budget, CostReport, OverBudget
from stoker.hooks.cost_report import hook_table, phase_table
from stoker.metrics import Accuracy
from support.pool import pool
from support.tasks.costs import found_in
from support.toys import Recorder, batches, engine, net, same_bits, trainer


class Reads(Hook):
    """Reads the loss back after each step."""

    def after_step(self, run):
        float(run.loss)


def rows_of(report):
    return {(row.hook, row.part, row.point): row for row in report.costs.rows}


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (lambda x: x + 1, Counts(1, 0, 0)),
        (lambda x: x.detach(), Counts(1, 0, 0)),
        (lambda x: x[0].item(), Counts(2, 1, 0)),
        (lambda x: bool(x[0] > 0), Counts(3, 1, 0)),
        (lambda x: x.tolist(), Counts(0, 1, 0)),
        (lambda x: x.numpy().sum(), Counts(1, 1, 0)),
        (lambda x: x[x > 0], Counts(2, 1, 0)),
        (lambda x: x.nonzero(), Counts(1, 1, 0)),
        (lambda x: x[:2].shape, Counts(1, 0, 0)),
    ],
)
def test_operations_and_readbacks_are_counted(code, expected):
    x = torch.ones(3)
    with counted() as counts:
        code(x)
    assert counts == expected
    code(x)
    assert counts == expected


def test_each_hook_metric_and_writer_has_its_own_row(tmp_path):
    report = CostReport(steps=4, warmup=1)
    accuracy = hooks.Metrics("accuracy", on="train")
    write = hooks.Write(JsonLines(), every=2)
    trainer(report, hooks.Loss(), accuracy, write, Reads(), run_dir=tmp_path).fit(
        batches(48), max_steps=12
    )
    rows = rows_of(report)
    for key in [
        ("Loss", "", "after_step"),
        ("Metrics", "", "after_step"),
        ("Metrics", "accuracy", "update"),
        ("Write(JsonLines)", "", "after_step"),
        ("Reads", "", "after_step"),
    ]:
        assert (rows[key].timer.count, rows[key].counted) == (4, 4), key
        assert rows[key].timer.total > 0
    assert rows["Write(JsonLines)", "JsonLines", "write"].timer.count == 2
    assert rows["Reads", "", "after_step"].counts.syncs == 4
    assert rows["Loss", "", "after_step"].counts.syncs == 0
    assert rows["Write(JsonLines)", "", "after_step"].counts.syncs >= 2
    whole, part = rows["Metrics", "", "after_step"], rows["Metrics", "accuracy", "update"]
    assert whole.timer.total > part.timer.total
    assert whole.counts.operations >= part.counts.operations > 0


@pytest.mark.parametrize("accumulate", [1, 2])
def test_a_step_is_divided_into_its_phases(accumulate):
    report = CostReport(steps=3, warmup=1)
    trainer(report, hooks.LR(), accumulate=accumulate).fit(batches(64), max_steps=7)
    costs = report.costs
    for phase in ("data", "forward", "backward", "update", "hooks", "other"):
        assert costs.phases[phase] > 0, phase
    assert costs.phases["writers"] == 0
    assert sum(costs.steps) == pytest.approx(sum(costs.phases.values()))
    assert len(costs.steps) == costs.counted == 3
    micro_batches = 3 * accumulate
    assert costs.counts_of("forward").operations >= 6 * micro_batches
    assert costs.counts_of("forward").syncs == 0
    assert costs.counts_of("backward").operations > costs.counts_of("update").operations > 0


def test_a_wait_for_data_and_a_slow_forward_are_distinguished():
    took = {"data": [], "forward": []}

    def spin(phase):
        began = perf_counter()
        for _ in range(100):
            torch.ones(100).sum()
        took[phase].append(perf_counter() - began)

    class Slow:
        def __iter__(self):
            for batch in batches(80):
                spin("data")
                yield batch

    class Twice(Step):
        def forward(self, engine, batch):
            spin("forward")
            return super().forward(engine, batch)

    report = CostReport(steps=5, warmup=1)
    trainer(report, step=Twice()).fit(Slow(), max_steps=11)
    for phase, seconds in took.items():
        assert report.costs.phases[phase] > sum(seconds[1:6]), phase
    assert report.costs.counts_of("forward").operations > 5 * 200


def test_validations_and_ends_of_epochs_are_no_part_of_steps():
    slow = hooks.Callback(before_val=lambda run: [torch.ones(50).sum() for _ in range(3000)])
    report = CostReport(steps=6, warmup=1)
    trainer(report, slow).fit(batches(), batches(8), max_steps=13)
    assert max(report.costs.steps) < rows_of(report)["Callback", "", "before_val"].timer.mean


def test_afterwards_the_hooks_are_called_as_without_a_report():
    report, loss = CostReport(steps=2, warmup=0), hooks.Loss()
    metrics = hooks.Metrics("accuracy", on="train")
    seen = []
    observe = hooks.Callback(after_step=lambda run: seen.append(dict(one.hooks.calls)))
    one = trainer(report, loss, metrics, observe)
    bare = trainer(loss, metrics, observe)
    one.fit(batches(40), max_steps=8)
    assert one.hooks.calls == bare.hooks.calls
    assert {type(call).__name__ for calls in seen[-1].values() for call in calls} <= {
        "method",
        "function",
    }
    assert "update" not in vars(metrics._train["accuracy"])
    assert not {"backward", "update", "zero_grad", "adjust_lr"} & vars(one.engine).keys()


def test_a_metric_that_two_hooks_share_is_given_back_and_counted_for_both():
    shared = Accuracy()
    report = CostReport(steps=2, warmup=0)
    first, second = (hooks.Metrics(accuracy=shared, on="val") for _ in range(2))
    second.name = "second"
    trainer(report, first, second).fit(batches(40), batches(8), max_steps=4, validate_every=1)
    rows = rows_of(report)
    assert rows["Metrics", "accuracy", "update"].timer.count > 0
    assert rows["second", "accuracy", "update"].timer.count > 0
    assert not {"update", "compute"} & vars(shared).keys()
    assert len(report.costs.steps) == report.costs.counted == 2


def test_a_fit_too_short_leaves_the_report_to_the_next_one():
    report = CostReport(steps=2, warmup=1)
    one = trainer(report, hooks.Loss())
    one.fit(batches(), max_steps=1)
    assert report.costs is None
    one.fit(batches(), max_steps=7)
    assert len(report.costs.steps) == report.costs.counted == 2


def test_looking_changes_no_bit():
    def trained(*more):
        one = trainer(*more, hooks.Loss(), model=net(dropout=True), accumulate=2, seed=3)
        one.fit(batches(60), batches(8), epochs=3)
        return one.engine.model

    assert same_bits(trained(CostReport(steps=4, warmup=2)), trained())


def test_hooks_are_called_in_the_same_order_with_it():
    def order(*more):
        first, second = Recorder("first", 20), Recorder("second", 5)
        first.points = second.points
        trainer(first, second, *more).fit(batches(), batches(8), epochs=2)
        return first.points

    assert order(CostReport(steps=3, warmup=1)) == order()


@pytest.mark.parametrize("fails_at", [0, 3, 6])
def test_a_hook_that_fails_meanwhile_is_named_and_nothing_stays_behind(fails_at):
    def fail(run):
        if run.step > fails_at:
            raise RuntimeError("out of luck")

    bad = hooks.Callback(name="Bad", before_update=fail, after_step=fail)
    one = trainer(CostReport(steps=2, warmup=2), bad, hooks.Metrics("accuracy", on="train"))
    with pytest.raises(RuntimeError) as caught:
        one.fit(batches(60), epochs=1)
    assert any("raised by hook 'Bad'" in note for note in caught.value.__notes__)
    assert not {"backward", "update"} & vars(one.engine).keys()
    with counted() as counts:
        torch.ones(1)
    assert counts.operations == 1, "modes of torch are on no longer"


def test_a_budget_that_is_kept_says_nothing_and_one_that_is_not_names_the_hook():
    def fit(**budgets):
        report = CostReport(steps=2, warmup=1, budgets=budgets)
        trainer(report, hooks.Loss(), Reads()).fit(batches(40), max_steps=6)
        return report

    report = fit(Loss=Budget(operations=4, syncs=0, collectives=0), Reads=Budget(syncs=1))
    with pytest.raises(OverBudget) as caught:
        fit(Reads=Budget(syncs=0))
    assert str(caught.value) == (
        "hook 'Reads' has 1 syncs per call of after_step, its budget allows 0"
    )
    assert any("raised by hook 'CostReport' in after_step" in n for n in caught.value.__notes__)
    report.check({"Reads": Budget(operations=5)})
    with pytest.raises(OverBudget, match="'Loss' has .* operations per call of after_step"):
        report.check({"Loss": Budget(operations=0)})


def test_a_budget_that_cannot_be_held_is_refused():
    with pytest.raises(
        ValueError, match="budgets names 'Los', but the run has no such hook; did you mean 'Loss'"
    ):
        trainer(CostReport(budgets={"Los": Budget()}), hooks.Loss())
    report = CostReport(steps=3, warmup=1, budgets={"Loss": Budget(syncs=0)})
    with pytest.raises(
        OverBudget, match="the run ended after 3 steps, and counting starts after 4"
    ):
        trainer(report, hooks.Loss()).fit(batches(), max_steps=3)
    for wrong in ({"steps": 0}, {"warmup": -1}):
        with pytest.raises(ValueError, match="steps must be at least 1 and warmup at least 0"):
            CostReport(**wrong)


def test_the_numbers_go_into_the_run_folder_once(tmp_path):
    report = CostReport(steps=2, warmup=1, trace=tmp_path / "trace.json")
    trainer(report, hooks.Loss(), run_dir=tmp_path / "run").fit(batches(48), max_steps=9)
    found = json.loads((tmp_path / "run" / "cost.json").read_text())
    assert (found["steps"], found["counted"], found["warmup"]) == (2, 2, 1)
    assert sum(phase["share"] for phase in found["phases"].values()) == pytest.approx(1)
    row = next(r for r in found["rows"] if (r["hook"], r["point"]) == ("Loss", "after_step"))
    assert row["calls"] == row["counted_calls"] == 2
    assert row["seconds"] > 0
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    steps = [event for event in events if event["name"] == "step"]
    assert len(steps) == 2
    for event in events[1:]:
        assert event["ph"] == "X"
        assert event["dur"] >= 0
    inside = [e for e in events[1:] if e["name"] in ("backward", "Loss", "update")]
    for event in inside:
        around = [
            s
            for s in steps
            if s["ts"] <= event["ts"] and event["ts"] + event["dur"] <= s["ts"] + s["dur"] + 1e-6
        ]
        assert len(around) == 1


def test_a_run_that_is_too_short_is_reported(caplog):
    report = CostReport(warmup=5)
    trainer(report).fit(batches(), max_steps=2)
    assert report.costs is None
    assert "the run ended after 2 steps, and the first 5 are warmup" in caplog.text
    short = CostReport(steps=50, warmup=1)
    trainer(short).fit(batches(), max_steps=4)
    assert (len(short.costs.steps), short.costs.counted) == (3, 0)


@pytest.mark.slow
def test_a_compiled_model_is_counted_in_its_hooks_alone():
    report = CostReport(steps=2, warmup=1)
    Trainer(engine(compile="eager"), [report, hooks.Loss()]).fit(batches(40), max_steps=7)
    assert report.costs.counts_of("forward") is None
    assert report.costs.counts_of("hooks").operations > 0
    assert report.costs.phases["forward"] > 0


def test_tables_have_a_row_for_each_phase_and_hook():
    report = CostReport(steps=2, warmup=1)
    trainer(report, hooks.Loss(), hooks.Metrics("accuracy", on="train")).fit(
        batches(40), max_steps=7
    )
    phases = format_table(phase_table(report.costs)).splitlines()
    assert phases[0].split() == ["phase", "µs", "share", "operations", "syncs", "collectives"]
    assert [line.split()[0] for line in phases[1:8]] == [*report.costs.phases]
    found = format_table(hook_table(report.costs), left=(0, 1)).splitlines()
    assert any(line.startswith("  accuracy") and "update" in line for line in found)
    assert len({len(line) for line in found if line.endswith("0")}) == 1


@pytest.mark.process
@pytest.mark.parametrize("layout", [Layout(replicate=2), Layout(shard=2)], ids=str)
def test_collectives_are_those_of_the_hook_that_makes_them(layout):
    for found in pool().run(2, found_in, layout):
        assert found["processes"] == 2
        assert found["hooks"]["Talks"] == 2
        assert found["backward"].operations > 0
