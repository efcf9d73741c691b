"""Which hooks make ranks synchronize after every step, and that users are told."""

import pytest

from stoker import Hook, hooks
from stoker.hooks.base.agreement import Agreement
from stoker.run import Run
from support.toys import engine


class Logs(Hook):
    def after_step(self, run):
        pass


class SameEverywhere(Logs):
    same_on_all_ranks = True


class AtEpochs(Hook):
    def after_epoch(self, run):
        pass


def test_a_hook_that_costs_a_collective_per_step_is_named_once(caplog, monkeypatch):
    monkeypatch.setattr("stoker.core.log._hinted", set())
    caplog.set_level("INFO")
    for _ in range(2):
        Agreement([Logs(), SameEverywhere(), AtEpochs()]).attach(Run(engine()))
    assert [r.getMessage().split(" act at")[0] for r in caplog.records] == ["hint: hooks 'Logs'"]
    assert "same_on_all_ranks = True" in caplog.text


@pytest.mark.parametrize("given", [[], [SameEverywhere()], [AtEpochs()], hooks.default()])
def test_other_hooks_cost_none(given, caplog):
    caplog.set_level("INFO")
    Agreement(given).attach(Run(engine()))
    assert not caplog.records


def test_no_hook_of_stoker_costs_one():
    made = [
        hooks.Heartbeat(),
        hooks.CostReport(),
        hooks.GradNorm(),
        hooks.NaNGuard(),
        hooks.EMA(0.9),
        hooks.Throughput(),
        hooks.Profiler(),
        hooks.Memory(),
    ]
    assert not Agreement(made)._each_step
