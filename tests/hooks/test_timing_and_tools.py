import json
import re

import pytest
import torch

from stoker import Trainer, hooks
from stoker.core.timers import MultiTimer
from stoker.hooks import POINTS, Callback
from support.toys import Recorder, batches, engine, loader, trainer


@pytest.mark.row("C18")
def test_times_cover_the_steps_of_this_epoch_alone():
    timing = hooks.Timing()
    counts = []
    look = Callback(
        priority=95, after_train_epoch=lambda run: counts.append(timing.timers["train-step"].count)
    )
    trainer(timing, look).fit(batches(), epochs=3)
    assert counts == [5, 5, 5]
    step = timing.timers["train-step"]
    assert 0 < step.last < timing.timers["train-epoch"].last
    assert step.mean == pytest.approx(step.total / 5)


@pytest.mark.row("C18")
def test_the_first_steps_are_left_out_once():
    timing = hooks.Timing(ignore_steps=3)
    counts = []
    look = Callback(
        priority=95, after_train_epoch=lambda run: counts.append(timing.timers["train-step"].count)
    )
    trainer(timing, look).fit(batches(), epochs=2)
    assert counts == [2, 5]


@pytest.mark.row("C18")
def test_the_times_of_an_epoch_are_logged_on_request(caplog):
    caplog.set_level("INFO")
    trainer(hooks.Timing(log_epochs=True)).fit(batches(), epochs=2)
    logged = re.findall(r"train-step: last = [\d.]+ s, mean = [\d.]+ s over 5 steps", caplog.text)
    assert len(logged) == 2


@pytest.mark.row("C18")
def test_a_running_timer_has_no_reading_and_timers_reset_by_name_or_all():
    timers = MultiTimer()
    timers.start("a")
    with pytest.raises(RuntimeError, match="the timer is running"):
        timers["a"].elapsed()
    timers.stop("a")
    timers["b"].add(2.0)
    timers.reset("a")
    assert (timers["a"].count, timers["b"].count) == (0, 1)
    timers.reset()
    assert timers["b"].count == 0
    with pytest.raises(RuntimeError, match="not running"):
        timers.stop("a")


def test_waiting_for_data_is_measured():
    import time

    class Slow:
        def __iter__(self):
            for batch in batches(12):
                time.sleep(0.02)
                yield batch

    timing = hooks.Timing()
    run = trainer(timing)
    run.fit(Slow(), epochs=1)
    assert timing.timers["train-data"].mean > 0.015
    assert run.run.events.readings()["time/data"] > 0.015


def test_throughput_counts_samples_and_tokens_where_batches_say_so():
    run = trainer(hooks.Throughput())
    run.fit(batches(), epochs=1)
    shown = run.run.events.readings()
    assert shown["samples/s"] > 0
    assert "tokens/s" not in shown

    step = lambda e, b: e(torch.zeros(2, 4)).sum()
    tokens = [{"input_ids": torch.zeros(2, 7, dtype=torch.long)}, {"num_tokens": 3}]
    run = Trainer(engine(), [hooks.Throughput()], step=step)
    run.fit(tokens, epochs=1)
    shown = run.run.events.readings()
    # 17 tokens and 3 samples went by in the same time
    assert shown["tokens/s"] / shown["samples/s"] == pytest.approx(17 / 3)


@pytest.mark.row("C19")
def test_memory_is_reported_without_an_accelerator():
    run = trainer(hooks.Memory())
    history = run.fit(batches(), epochs=1)
    assert 0.05 < history[-1]["memory/host"] < 100
    assert "memory/device" not in history[-1]


def test_a_callback_may_act_at_every_point_and_at_no_other():
    seen = []
    everywhere = {p: (lambda run, p=p: seen.append(p)) for p in POINTS}
    recorder = Recorder()
    run = trainer(Callback(**everywhere), recorder)
    run.fit(batches(), batches(4), epochs=1)
    assert seen == recorder.points
    with pytest.raises(
        ValueError, match="there is no point named 'after_stp'; did you mean 'after_step'"
    ):
        Callback(after_stp=print)
    with pytest.raises(TypeError, match="after_step is a int, expected a function"):
        Callback(after_step=3)


def test_the_profiler_writes_a_trace_of_its_window(tmp_path):
    run = Trainer(engine(), [hooks.Profiler(start=2, steps=2)], run_dir=tmp_path)
    run.fit(batches(), epochs=1)
    trace = json.loads((tmp_path / "trace.json").read_text())
    names = [event.get("name") for event in trace["traceEvents"]]
    assert names.count("Optimizer.step#SGD.step") == 2


def test_a_profile_that_the_run_ends_in_is_written_too(tmp_path):
    trainer(hooks.Profiler(start=4, steps=50, path=tmp_path / "t" / "x.json")).fit(
        batches(), epochs=1
    )
    assert (tmp_path / "t" / "x.json").exists()


def test_a_profiler_without_a_place_is_refused():
    with pytest.raises(ValueError, match="Profiler has nowhere to write"):
        trainer(hooks.Profiler()).fit(batches(), epochs=1)


def test_periodic_hooks_act_at_multiples_and_at_the_end_once():
    class Notes(hooks.Periodic):
        def __init__(self, every):
            super().__init__(every)
            self.name = f"notes {every}"
            self.steps: list[int] = []

        def act(self, run):
            self.steps.append(run.step)

    wanted = {"3st": [3, 6, 9, 10], "1ep": [5, 10], 5: [5, 10], None: [10], "2ep": [10]}
    notes = [Notes(every) for every in wanted]
    trainer(*notes).fit(loader(), epochs=2)
    assert {n.name: n.steps for n in notes} == {f"notes {k}": v for k, v in wanted.items()}


class Clock:
    """A clock that stands still until somebody waits."""

    now = 0.0

    def __call__(self) -> float:
        return self.now

    def wait(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    for module in ("stoker.hooks.timing", "stoker.core.timers", "stoker.data.feeder"):
        monkeypatch.setattr(f"{module}.perf_counter", clock)
    return clock


def test_steps_that_are_ignored_leave_their_waiting_behind(clock):
    class SlowStart:
        def __iter__(self):
            clock.wait(0.5)
            for batch in batches(12):
                clock.wait(0.125)
                yield batch

    timing = hooks.Timing(ignore_steps=1)
    trainer(timing).fit(SlowStart(), epochs=1)
    waits = timing.timers["train-data"]
    assert waits.count > 0
    assert waits.total == 0.125 * waits.count


def test_reading_the_throughput_does_not_change_it():
    run = trainer(hooks.Throughput())
    run.fit(batches(), epochs=1)
    first = run.run.events.readings()
    assert first["samples/s"] > 0
    assert run.run.events.readings() == first


def test_a_profile_window_past_the_end_is_reported(tmp_path, caplog):
    trainer(hooks.Profiler(start=100, path=tmp_path / "t.json")).fit(batches(), epochs=1)
    assert "no step was profiled: profiling starts after step 100" in caplog.text


def test_validation_is_a_pause_for_the_throughput(clock):
    class Slow:
        def __iter__(self):
            clock.wait(1000)
            yield from batches(4)

    step = Callback(before_step=lambda run: clock.wait(0.25))
    run = trainer(hooks.Throughput(), step)
    run.fit(batches(), Slow(), epochs=1, validate_every=4)
    sizes = {len(x) for x, _ in batches()}
    assert run.run.events.readings()["samples/s"] == pytest.approx(sizes.pop() / 0.25, rel=0.5)


def test_tokens_may_be_counted_by_a_tensor():
    step = lambda e, b: e(torch.zeros(2, 4)).sum()
    run = Trainer(engine(), [hooks.Throughput()], step=step)
    run.fit([{"num_tokens": torch.tensor([3, 4])}], epochs=1)
    assert run.run.events.readings()["tokens/s"] > 0
