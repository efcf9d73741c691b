"""How a rank that hangs is told from one that works, compiles, or waits for another."""

import os
import sys
import threading
from contextlib import suppress
from dataclasses import replace
from types import SimpleNamespace
from unittest.mock import patch

import pytest

from stoker import Step, Trainer, hooks
from stoker.core.rank_status import RankStatus
from stoker.hooks import heartbeat
from stoker.hooks.base.agreement import with_agreement
from stoker.hooks.base.stack import Stack, outermost_code
from stoker.hooks.heartbeat import Watchdog, _waits
from support.toys import batches, engine

STATUS = RankStatus(1, "in step 3", False, {"0": 7}, "", False, "here", 1, "1")


@pytest.mark.parametrize(
    ("own", "others", "waits"),
    [
        ({"0": 8}, [{"0": 7}], True),
        ({"0": 7}, [{"0": 8}], False),
        ({"0": 7}, [{"0": 7}], False),
        ({"0": 8, "1": 3}, [{"0": 8, "1": 2}], True),  # in the background, as saves do
        ({"0": 8, "1": 3}, [{"0": 7, "1": 4}], False),  # each waits for the other
        ({"0": 8}, [{"0": 8}, {"0": 7}], True),
        ({"0": 8, "own": 1}, [{"0": 8, "theirs": 9}], False),
        ({}, [{}], False),
    ],
)
def test_a_rank_waits_if_it_has_started_more_collectives_than_another(own, others, waits):
    statuses = [replace(STATUS, collectives=other) for other in others]
    assert _waits(replace(STATUS, collectives=own), statuses) is waits


def test_a_rank_within_a_collective_waits_unless_another_has_gone_further():
    inside = replace(STATUS, waiting=True)
    assert _waits(inside, [STATUS])
    assert not _waits(inside, [replace(STATUS, collectives={"0": 8})])


def test_the_stack_shows_where_a_run_is():
    found: dict[str, str] = {}

    def record(name: str) -> None:
        found.setdefault(name, Stack(threading.get_ident()).where(trainer.run))

    class Recording(Step):
        def forward(self, engine, batch):
            record("forward" if engine.model.training else "validation")
            return super().forward(engine, batch)

        def update(self, engine):
            record("update")
            return super().update(engine)

    def loader(name: str):
        for batch in batches(2):
            record(name)
            yield batch

    class Loader:
        def __init__(self, name: str) -> None:
            self.name = name

        def __iter__(self):
            return loader(self.name)

    hook = hooks.Callback(after_step=lambda run: record("hook"))
    trainer = Trainer(engine(), [hook], step=Recording())
    trainer.fit(Loader("data"), Loader("validation data"), epochs=1)
    assert found == {
        "data": "fetching data after step 0",
        "forward": "in the forward pass of step 1",
        "update": "in the update of step 1",
        "hook": "in hook 'Callback' at after_step, after step 1",
        "validation data": "fetching data for the validation after step 1",
        "validation": "in the validation after step 1",
    }


def watched(*, steps: int, works: bool = False, compiling: bool = False) -> float:
    """Return how long a process may go without progress."""
    watchdog = Watchdog(Trainer(engine(), []).run, 300.0, 5.0)
    watchdog._steps, watchdog._cpu = steps, 0.0
    with patch.object(heartbeat, "process_time", lambda: 5.0 if works else 0.1):
        return watchdog._limit(SimpleNamespace(compiling=compiling), 100.0)


def test_a_process_that_stands_still_is_given_less_time_than_one_that_works_or_compiles():
    assert watched(steps=2) == 300
    assert watched(steps=1) == 1200
    assert watched(steps=2, works=True) == 1200
    assert watched(steps=2, compiling=True) == 1800


def test_frames_of_a_generator_that_has_yielded_meanwhile_are_read_again(monkeypatch):
    def values():
        yield sys._getframe()

    generator, thread = values(), threading.get_ident()
    frames = [next(generator), sys._getframe()]
    assert frames[0].f_back is None  # its callers are lost
    monkeypatch.setattr(sys, "_current_frames", lambda: {thread: frames.pop(0)})
    assert Stack(thread, outermost_code())._frames[-1] is sys._getframe()
    assert not frames


def test_imports_and_compilation_are_recognized_on_the_stack():
    def stack_from(file: str) -> Stack:
        code = compile("stack = Stack(threading.get_ident())", file, "exec")
        names = {"Stack": Stack, "threading": threading}
        exec(code, names)
        return names["stack"]

    assert stack_from("<frozen importlib._bootstrap>").compiling
    assert stack_from("/site-packages/torch/_inductor/compile_fx.py").compiling
    assert not stack_from("/site-packages/torch/_dynamo/eval_frame.py").compiling  # also runs
    assert stack_from("/usr/lib/python3.12/bdb.py").in_debugger
    assert not stack_from("train.py").in_debugger


def test_a_job_of_several_ranks_is_watched_and_a_single_process_is_not():
    assert with_agreement([]) == []
    with patch("stoker.core.dist.world_size", lambda: 2):
        assert [hook.name for hook in with_agreement([])] == ["Heartbeat", "Agreement"]
        own = hooks.Heartbeat(after=None)
        assert with_agreement([own])[0] is own
        assert len(with_agreement([own])) == 2


def test_none_turns_it_off():
    Trainer(engine(), [hooks.Heartbeat(after=None)]).fit(batches(2), epochs=1)
    assert not [one for one in threading.enumerate() if "_watch" in one.name]


def test_the_next_run_of_a_process_ends_the_watch_over_the_last_one():
    def watches() -> list[str]:
        return [one.name for one in threading.enumerate() if "_watch" in one.name]

    during: list[int] = []
    count = hooks.Callback(after_step=lambda run: during.append(len(watches())))
    for _ in range(3):
        Trainer(engine(), [hooks.Heartbeat(), count]).fit(batches(2), epochs=1)
    assert during == [1, 1, 1]
    hooks.Heartbeat._active._stop()
    assert watches() == []


@pytest.mark.process
@pytest.mark.parametrize("reader", ["gone", "stands still"])
def test_a_hung_process_ends_although_nobody_reads_its_errors(reader):
    seeing, stderr = os.pipe()
    if reader == "gone":
        os.close(seeing)
    else:
        os.set_blocking(stderr, False)
        with suppress(BlockingIOError):
            while os.write(stderr, bytes(65536)):
                pass
        os.set_blocking(stderr, True)
    child = os.fork()
    if child == 0:
        os.dup2(stderr, 2)
        heartbeat._end("rank 0 has made no progress")
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == heartbeat.HUNG
    os.close(stderr)
