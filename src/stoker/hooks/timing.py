"""Hooks that measure the run itself: time, throughput, memory."""

import sys
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
    """``time/step`` and ``time/data``: seconds per step and of waiting for its batches.

    Writers get the mean of the last 50 steps. `timers` can be read by others: "train-step" and
    "train-data" over the steps of the epoch, "train-epoch", "val-step" and "val".

    Args:
        ignore_steps: leave out the first steps of the run, which warm up.
        log_epochs: say the last and mean times after each epoch.
    """

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
        self._began = self._waited = 0.0

    def attach(self, run: Run) -> None:
        """Offer the recent means to writers."""
        run.events.gauge("time/step", lambda: _mean(self._steps))
        run.events.gauge("time/data", lambda: _mean(self._waits))

    def before_epoch(self, run: Run) -> None:
        """Measure the epoch, and its steps apart from earlier ones."""
        self._step_timer.reset()
        self._data_timer.reset()
        assert run.feeder is not None
        run.feeder.timed = True
        self._waited = run.feeder.waited
        self.timers.start("train-epoch")

    def before_step(self, run: Run) -> None:
        """Begin a step."""
        self._began = perf_counter()

    def after_step(self, run: Run) -> None:
        """End a step."""
        seconds = perf_counter() - self._began
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
        """End the epoch."""
        self.timers.stop("train-epoch")
        if self._log_epochs:
            step = self._step_timer
            _log.info(
                f"timing: epoch {self.timers['train-epoch'].last:.3f} s, train-step: last = "
                f"{step.last:.5f} s, mean = {step.mean:.5f} s over {step.count} steps"
            )

    def before_val(self, run: Run) -> None:
        """Measure a validation."""
        self.timers.reset("val-step")
        self.timers.start("val")

    def before_val_step(self, run: Run) -> None:
        """Begin a validation batch."""
        self.timers.start("val-step")

    def after_val_step(self, run: Run) -> None:
        """End a validation batch."""
        self.timers.stop("val-step")

    def after_val(self, run: Run) -> None:
        """End a validation."""
        self.timers.stop("val")


class Throughput(Hook):
    """``samples/s``, and ``tokens/s`` where batches say how many tokens they hold.

    A batch says so by an entry or attribute ``num_tokens``, or by ``input_ids``, all of which
    count. Both are over the last 50 steps.
    """

    priority = Priority.MEASURE
    same_on_all_ranks = True
    produces = ("samples/s", "tokens/s")

    def __init__(self) -> None:
        self._tokens = 0
        self._marks: deque[tuple[float, int, int]] = deque(maxlen=51)
        self._paused = 0.0

    def before_train(self, run: Run) -> None:
        """Begin to count."""
        self._marks.clear()
        self._marks.append((perf_counter(), run.samples, self._tokens))
        run.events.gauge("samples/s", lambda: self._rate(1))
        run.events.gauge("tokens/s", lambda: self._rate(2) or None)

    def after_step(self, run: Run) -> None:
        """Count."""
        self._tokens += sum(_tokens(batch) for batch in run.batches)
        self._marks.append((perf_counter(), run.samples, self._tokens))

    def before_val(self, run: Run) -> None:
        """A validation between steps is a pause."""
        self._paused = perf_counter()

    def after_val(self, run: Run) -> None:
        """The pause does not count."""
        pause = perf_counter() - self._paused
        shifted = [(when + pause, samples, tokens) for when, samples, tokens in self._marks]
        self._marks = deque(shifted, maxlen=51)

    def _rate(self, column: int) -> float | None:
        if not self._marks:
            return None
        first, last = self._marks[0], self._marks[-1]
        seconds = last[0] - first[0]
        return (last[column] - first[column]) / seconds if seconds else None


class Memory(Hook):
    """``memory/host`` and, on an accelerator, ``memory/device``: peaks in GiB, after each epoch."""

    priority = Priority.MEASURE
    same_on_all_ranks = True
    produces = ("memory/host", "memory/device")

    def after_epoch(self, run: Run) -> None:
        """Record the peaks."""
        host = host_peak_gib()
        if host is not None:
            run.record("memory/host", host)
        device = run.engine.device
        if device.type != "cpu":  # untested: no such device here
            peak = torch.accelerator.max_memory_allocated(device)
            run.record("memory/device", peak / 2**30)
            torch.accelerator.reset_peak_memory_stats(device)


def host_peak_gib() -> float | None:
    """The most memory this process has held, in GiB; None where the system does not tell."""
    try:
        import resource
    except ImportError:  # Windows
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (2**30 if sys.platform == "darwin" else 2**20)


def _mean(values: deque[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _tokens(batch: Any) -> int:
    if isinstance(batch, Mapping):
        if "num_tokens" in batch:
            return int(torch.as_tensor(batch["num_tokens"]).sum())
        ids = batch.get("input_ids")
        return ids.numel() if isinstance(ids, Tensor) else 0
    return int(getattr(batch, "num_tokens", 0))
