"""Hooks about speed: `Timing` and `Throughput`."""

from collections import deque
from collections.abc import Mapping
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from stoker.core.log import get_logger
from stoker.core.timers import MultiTimer
from stoker.hooks.base.hook import Hook, Priority
from stoker.run import Run

_log = get_logger()


class Timing(Hook):
    """Report ``time/step`` and ``time/data``, the seconds per step and spent waiting for data.

    Both are means over the last 50 steps. The attribute `timers` holds the timers "train-step" and
    "train-data" (over the current epoch), "train-epoch", "val-step" and "val".

    Args:
        ignore_steps: How many steps to exclude at the start of the run, as a warmup.
        log_epochs: Log the times of each epoch.
    """

    observes = True
    priority = Priority.MEASURE
    same_on_all_ranks = True
    produces = ("time/step", "time/data")

    def __init__(self, *, ignore_steps: int = 0, log_epochs: bool = False) -> None:
        self.timers = MultiTimer()
        self._step_timer, self._data_timer = self.timers["train-step"], self.timers["train-data"]
        self._ignore = ignore_steps
        self._log_epochs = log_epochs
        self._steps: deque[float] = deque(maxlen=50)
        self._waits: deque[float] = deque(maxlen=50)
        self._started = self._waited = 0.0

    def attach(self, run: Run) -> None:
        """Register the running means as gauges."""
        run.events.gauge("time/step", lambda: _mean(self._steps))
        run.events.gauge("time/data", lambda: _mean(self._waits))

    def before_epoch(self, run: Run) -> None:
        """Start timing the epoch."""
        self._step_timer.reset()
        self._data_timer.reset()
        assert run.feeder is not None
        run.feeder.timed = True
        self._waited = run.feeder.waited
        self.timers.start("train-epoch")

    def before_step(self, run: Run) -> None:
        """Start timing a step."""
        self._started = perf_counter()

    def after_step(self, run: Run) -> None:
        """Stop timing a step."""
        seconds = perf_counter() - self._started
        assert run.feeder is not None
        waited, self._waited = run.feeder.waited - self._waited, run.feeder.waited
        if self._ignore:
            self._ignore -= 1
            return
        self._steps.append(seconds)
        self._step_timer.add(seconds)
        self._waits.append(waited)
        self._data_timer.add(waited)

    def after_train_epoch(self, run: Run) -> None:
        """Stop timing the epoch."""
        self.timers.stop("train-epoch")
        if self._log_epochs:
            step = self._step_timer
            _log.info(
                f"timing: epoch {self.timers['train-epoch'].last:.3f} s, train-step: last = "
                f"{step.last:.5f} s, mean = {step.mean:.5f} s over {step.count} steps"
            )

    def before_val(self, run: Run) -> None:
        """Start timing a validation."""
        self.timers.reset("val-step")
        self.timers.start("val")

    def before_val_step(self, run: Run) -> None:
        """Start timing a validation batch."""
        self.timers.start("val-step")

    def after_val_step(self, run: Run) -> None:
        """Stop timing a validation batch."""
        self.timers.stop("val-step")

    def after_val(self, run: Run) -> None:
        """Stop timing a validation."""
        self.timers.stop("val")


class Throughput(Hook):
    """Report ``samples/s`` and, for batches of tokens, ``tokens/s`` over the last 50 steps.

    The number of tokens is the entry or attribute ``num_tokens`` of a batch, or the size of its
    ``input_ids``. Time spent in validation is excluded.
    """

    observes = True
    priority = Priority.MEASURE
    same_on_all_ranks = True
    produces = ("samples/s", "tokens/s")

    def __init__(self) -> None:
        self._tokens = 0
        self._counts: deque[tuple[float, int, int]] = deque(maxlen=51)
        self._paused = 0.0

    def before_train(self, run: Run) -> None:
        """Start counting."""
        self._counts.clear()
        self._counts.append((perf_counter(), run.samples, self._tokens))
        run.events.gauge("samples/s", lambda: self._rate(1))
        run.events.gauge("tokens/s", lambda: self._rate(2) or None)

    def after_step(self, run: Run) -> None:
        """Count the samples and tokens of a step."""
        self._tokens += sum(_tokens(batch) for batch in run.batches)
        self._counts.append((perf_counter(), run.samples, self._tokens))

    def before_val(self, run: Run) -> None:
        """Pause for a validation."""
        self._paused = perf_counter()

    def after_val(self, run: Run) -> None:
        """Exclude the time of the validation."""
        pause = perf_counter() - self._paused
        shifted = [(when + pause, samples, tokens) for when, samples, tokens in self._counts]
        self._counts = deque(shifted, maxlen=51)

    def _rate(self, column: int) -> float | None:
        if not self._counts:
            return None
        first, last = self._counts[0], self._counts[-1]
        seconds = last[0] - first[0]
        return (last[column] - first[column]) / seconds if seconds else None


def _mean(values: deque[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _tokens(batch: Any) -> int:
    if isinstance(batch, Mapping):
        if "num_tokens" in batch:
            return int(torch.as_tensor(batch["num_tokens"]).sum())
        ids = batch.get("input_ids")
        return ids.numel() if isinstance(ids, Tensor) else 0
    return int(getattr(batch, "num_tokens", 0))
