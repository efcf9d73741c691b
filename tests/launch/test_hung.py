"""A process that makes progress is left alone by the watch over those that are stuck."""

import threading
from unittest.mock import patch

import pytest

from stoker import Trainer, hooks, launch
from support.processes import wait_until
from support.toys import batches, engine

pytestmark = pytest.mark.process


def test_a_run_that_makes_progress_is_left_alone_and_ends_its_watch():
    assert launch.run(makes_progress) == []


class Clock:
    """Advances with the steps, each of which waits until the watch has read it."""

    def __init__(self) -> None:
        self.now, self.read = 0.0, threading.Event()

    def __call__(self) -> float:
        self.read.set()
        return self.now

    def advance(self, run) -> None:
        self.now += 1.0
        self.read.clear()
        wait_until(self.read.is_set, "the watch to read the clock")


def makes_progress() -> list[str]:
    clock = Clock()
    with patch("stoker.hooks.heartbeat.monotonic", clock):
        trainer = Trainer(
            engine(), [hooks.Heartbeat(after=1.5), hooks.Callback(after_step=clock.advance)]
        )
        trainer.fit(batches(22), batches(8), epochs=4)
        trainer.evaluate(batches(8))
        trainer.predict(batches(8))
    assert clock.now > 20
    wait_until(lambda: not watches(), "the end of the watch")
    return watches()


def watches() -> list[str]:
    return [thread.name for thread in threading.enumerate() if "_watch" in thread.name]


def test_no_time_at_all_is_refused():
    with pytest.raises(ValueError, match="after must be a positive number of seconds, got 0"):
        hooks.Heartbeat(0)
