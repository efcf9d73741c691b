"""A process that makes progress is left alone by the watch over those that are stuck."""

import threading
import time

import pytest

from stoker import Trainer, hooks, launch
from support.toys import batches, engine


def test_a_run_that_goes_on_is_left_alone_and_ends_its_watch():
    assert launch.run(goes_on) == []


def goes_on() -> list[str]:
    slow = hooks.Callback(after_step=lambda run: time.sleep(0.1))
    trainer = Trainer(engine(), [hooks.Heartbeat(after=1.5), slow])
    trainer.fit(batches(22), batches(8), epochs=4)
    trainer.evaluate(batches(8))
    trainer.predict(batches(8))
    time.sleep(1)
    return [thread.name for thread in threading.enumerate() if "_watch" in thread.name]


def test_no_time_at_all_is_refused():
    with pytest.raises(ValueError, match="after is a number of seconds above 0, got 0"):
        hooks.Heartbeat(0)
