"""The loop stays as light as it is: counted in calls, operations and bytes, never in seconds.

A hollow model, whose step computes nothing, leaves the calls that the loop itself makes. `ALLOWED`
is what they were when it was last looked at, with a little slack: lower it when they become fewer.
"""

import gc
import sys
import tracemalloc
from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from stoker import Engine, Hook, Trainer, hooks
from stoker.core import dist
from stoker.core.op_counter import counted
from stoker.events import JsonLines
from stoker.events.writers import jsonl
from stoker.hooks import checkpoint

pytestmark = pytest.mark.slow

STEPS = 100

ALLOWED = {
    # per step and over the plain loop's: calls of functions of Python and C, tensor operations
    "nothing": (10, -2),
    "defaults": (50, -0.9),
    "evaluation": (27, 0),
    "prediction": (15, 0),
}
CALLS_PER_EPOCH = 1200
"""Of an epoch of one step, with the defaults and a run folder, when it is not saved."""


class Hollow(nn.Module):
    """One number goes through all the calls of a step."""

    def __init__(self) -> None:
        super().__init__()
        self.number = nn.Parameter(torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        return self.number


class Itself(nn.Module):
    def forward(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return outputs


class Still(torch.optim.SGD):
    def step(self) -> None:
        pass


class Idle(Hook):
    """Overrides nothing that a step fires."""

    def __init__(self, number: int) -> None:
        self.name = f"idle{number}"

    def before_predict(self, run: object) -> None:
        pass


BATCH = (torch.zeros(8, 2), torch.zeros(8))


def plain(data: Iterable[Any]) -> None:
    model, criterion = Hollow(), Itself()
    optimizer = Still(model.parameters(), lr=0.1)
    model.train()
    for x, y in data:
        optimizer.zero_grad()
        loss = criterion(model(x), y)
        loss.backward()
        optimizer.step()


def trained(make_hooks: Callable[[], list[Hook]]) -> Callable[[Iterable[Any]], None]:
    def fit(data: Iterable[Any]) -> None:
        model = Hollow()
        engine = Engine(model, Still(model.parameters(), lr=0.1), Itself(), device="cpu")
        Trainer(engine, make_hooks()).fit(data, epochs=1)

    return fit


@torch.no_grad()
def judged_by_hand(data: Iterable[Any]) -> None:
    model, criterion, losses, count = Hollow().eval(), Itself(), [], 0
    for x, y in data:
        losses.append(criterion(model(x), y) * len(y))
        count += len(y)
    torch.stack(losses).sum() / count


@torch.no_grad()
def predicted_by_hand(data: Iterable[Any]) -> None:
    model = Hollow().eval()
    torch.stack([model(x) for x, _ in data])


def looked_at(how: str, *use: Hook) -> Callable[[Iterable[Any]], None]:
    engine = Engine(Hollow(), None, Itself(), device="cpu")
    return getattr(Trainer(engine, use), how)  # type: ignore[no-any-return]


def calls_in(function: Callable[[], object]) -> int:
    """How many functions of Python and C are called within it."""
    calls = 0

    def count(frame: object, event: str, argument: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    gc.collect()
    gc.disable()  # what it calls when it comes by is not the loop's
    before = sys.getprofile()
    sys.setprofile(count)
    try:
        function()
    finally:
        sys.setprofile(before)
        gc.enable()
    return calls


def per_step(loop: Callable[[Iterable[Any]], None]) -> tuple[float, float]:
    """Calls and tensor operations per step, the beginning and end of a run left out."""
    loop([BATCH] * 9)  # what is done once per process
    calls, operations = [], []
    for steps in (STEPS, 2 * STEPS):
        calls.append(calls_in(lambda steps=steps: loop([BATCH] * steps)))
        with counted() as counts:
            loop([BATCH] * steps)
        operations.append(counts.operations)
    return (calls[1] - calls[0]) / STEPS, (operations[1] - operations[0]) / STEPS


def usual() -> list[Hook]:
    return hooks.default(log_every=STEPS, progress=False)


def over_plain(
    loop: Callable[[Iterable[Any]], None], by_hand: Callable[[Iterable[Any]], None] = plain
) -> tuple[float, float]:
    (calls, operations), (base_calls, base_operations) = per_step(loop), per_step(by_hand)
    return calls - base_calls, operations - base_operations


@pytest.mark.parametrize(("what", "given"), [("nothing", list), ("defaults", usual)])
def test_a_step_makes_no_more_calls_and_operations_than_it_used_to(what, given):
    calls, operations = over_plain(trained(given))
    assert calls <= ALLOWED[what][0]
    assert operations <= ALLOWED[what][1]


@pytest.mark.parametrize(
    ("what", "loop", "by_hand"),
    [
        ("evaluation", looked_at("evaluate", hooks.Loss()), judged_by_hand),
        ("prediction", looked_at("predict"), predicted_by_hand),
    ],
)
def test_a_validation_batch_costs_no_more_calls_than_before(what, loop, by_hand):
    calls, operations = over_plain(loop, by_hand)
    assert calls <= ALLOWED[what][0]
    assert operations <= ALLOWED[what][1]


def test_a_hundred_idle_hooks_add_not_one_call_to_a_step():
    idle = [Idle(number) for number in range(100)]
    assert per_step(trained(lambda: idle)) == per_step(trained(list))


def test_a_cost_report_that_has_measured_adds_not_one_call_to_a_step():
    def reported() -> list[Hook]:
        return [*usual(), hooks.CostReport(steps=2, warmup=0)]

    assert per_step(trained(reported)) == per_step(trained(usual))


@pytest.mark.parametrize("given", [list, usual], ids=["nothing", "defaults"])
def test_memory_stays_flat_however_many_steps(given):
    held = []

    class ValidationRecord(Hook):
        same_on_all_ranks = True

        def after_step(self, run: Any) -> None:
            if run.step in (1000, 6000):
                gc.collect()
                held.append(tracemalloc.get_traced_memory()[0])

    tracemalloc.start()
    try:
        trained(lambda: [*given(), ValidationRecord()])([BATCH] * 6000)
    finally:
        tracemalloc.stop()
    assert held[1] - held[0] < 16_384, "one number per step would be 120,000 bytes"


class Saves(hooks.Checkpoint):
    """Notes the steps that are saved."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.steps: list[int] = []

    def after_save(self, path: Any) -> None:
        self.steps.append(int(path.name.removeprefix("step-")))


def saved_steps(run_dir: Any, monkeypatch: Any, *every: Any, seconds: float, wait: float) -> list:
    """The saves of 100 epochs of one step that take some seconds each, a save some more."""
    now = [0.0]
    clock = iter(float(n) for n in range(10**9))
    monkeypatch.setattr(dist, "now", lambda: now[0])
    monkeypatch.setattr(checkpoint, "perf_counter", lambda: wait * next(clock))
    tick = hooks.Callback(after_step=lambda run: now.__setitem__(0, run.step * seconds))
    tick.same_on_all_ranks = True
    saves = Saves(*every)
    model = Hollow()
    engine = Engine(model, Still(model.parameters(), lr=0.1), Itself(), device="cpu")
    Trainer(engine, [saves, tick], run_dir=run_dir).fit([BATCH], epochs=100)
    return saves.steps


def test_short_epochs_are_saved_as_often_as_their_share_of_the_time_allows(tmp_path, monkeypatch):
    steps = saved_steps(tmp_path, monkeypatch, seconds=1 / 64, wait=0.004)
    assert steps == [*range(11), 36, 62, 88, 100]


def test_epochs_that_are_worth_it_are_all_saved(tmp_path, monkeypatch):
    assert saved_steps(tmp_path, monkeypatch, seconds=1.0, wait=0.002) == [*range(101)]


def test_an_expensive_save_waits_for_a_minute_of_training_at_most(tmp_path, monkeypatch):
    steps = saved_steps(tmp_path, monkeypatch, seconds=10.0, wait=5.0)
    assert steps == [*range(11), *range(17, 101, 7), 100]


def test_a_period_that_is_given_is_kept_however_short_the_epochs_are(tmp_path, monkeypatch):
    assert saved_steps(tmp_path, monkeypatch, "1ep", seconds=1e-6, wait=1.0) == [*range(101)]


def test_lines_of_many_steps_reach_their_file_by_one_call_of_the_system(tmp_path, monkeypatch):
    calls = []
    append = jsonl.append
    monkeypatch.setattr(jsonl, "append", lambda *a: (calls.append(a), append(*a))[1])
    monkeypatch.setattr(jsonl, "monotonic", lambda: 0.0)
    model = Hollow()
    engine = Engine(model, Still(model.parameters(), lr=0.1), Itself(), device="cpu")
    used = [hooks.Loss(window=1), hooks.Write(JsonLines(), every=1)]
    Trainer(engine, used, run_dir=tmp_path).fit([BATCH] * 500, epochs=1)
    assert len(calls) == 2, "the first line, and all others when the file is closed"
    assert len(jsonl.read_json_lines(tmp_path / "metrics.jsonl")) == 500


def test_an_epoch_costs_no_more_calls_after_many_epochs_than_after_few(tmp_path, monkeypatch):
    monkeypatch.setattr(hooks.Checkpoint, "_is_paid", lambda *_, **__: False)
    monkeypatch.setattr(jsonl, "monotonic", lambda: 0.0)

    def fit(epochs: int) -> int:
        model = Hollow()
        engine = Engine(model, Still(model.parameters(), lr=0.1), Itself(), device="cpu")
        trainer = Trainer(engine, usual(), run_dir=tmp_path / str(epochs))
        return calls_in(lambda: trainer.fit([BATCH], epochs=epochs))

    fit(15)  # what is done once per process
    calls = {epochs: fit(epochs) for epochs in (15, 35, 115, 135)}
    few, many = (calls[35] - calls[15]) / 20, (calls[135] - calls[115]) / 20
    assert many <= few + 2
    assert many <= CALLS_PER_EPOCH
