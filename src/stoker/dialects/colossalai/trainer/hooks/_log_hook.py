"""Hooks that tell: lines in a log, values for the progress bar, TensorBoard."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from stoker import dist
from stoker.dialects.colossalai.context import ParallelMode
from stoker.dialects.colossalai.trainer.hooks._base_hook import BaseHook
from stoker.hooks.timing import host_peak_gib


class _LogHook(BaseHook):
    """Base of hooks that log each ``interval`` epochs, and after the last one."""

    def __init__(self, logger: Any = None, interval: int = 1, priority: int = 10) -> None:
        super().__init__(priority)
        if type(interval) is not int or interval < 1:
            raise ValueError(f"interval is a whole number of epochs from 1, got {interval!r}")
        self.logger, self.interval = logger, interval

    def due(self, trainer: Any) -> bool:
        """Whether the epochs that are completed are a multiple of the interval, or all."""
        run = trainer.run
        return run.task != "fit" or run.epoch % self.interval == 0 or bool(run.done)

    def say(self, trainer: Any, message: str) -> None:
        """Log it, in one process."""
        (self.logger or trainer.logger).info(message, ranks=[0])


class LogMetricByEpochHook(_LogHook):
    """Logs all metrics: ``[Epoch 1 / Train]: Loss = 0.31 | LR = 0.1``."""

    def after_train_epoch(self, trainer: Any) -> None:
        """A line for the training."""
        self._log(trainer, "train")

    def after_test_epoch(self, trainer: Any) -> None:
        """A line for the test."""
        self._log(trainer, "test")

    def _log(self, trainer: Any, mode: str) -> None:
        metrics = trainer.states.get("metrics", {}).get(mode, {})
        if self.due(trainer) and metrics:
            values = {n: metric.get_accumulated_value() for n, metric in metrics.items()}
            text = " | ".join(f"{name} = {value:.5g}" for name, value in values.items())
            self.say(trainer, f"[Epoch {trainer.run.epoch_in_hand} / {mode.title()}]: {text}")


class LogMetricByStepHook(BaseHook):
    """Puts the last values of the metrics into ``states['step_metrics']``, for the progress bar."""

    def __init__(self, priority: int = 10) -> None:
        super().__init__(priority)

    def after_train_iter(self, trainer: Any, output: Any, label: Any, loss: Any) -> None:
        """The values of the step."""
        self._put(trainer, "train")

    def after_test_iter(self, trainer: Any, output: Any, label: Any, loss: Any) -> None:
        """The values of the test batch."""
        self._put(trainer, "test")

    def _put(self, trainer: Any, mode: str) -> None:
        metrics = trainer.states.get("metrics", {}).get(mode, {})
        shown = trainer.states["step_metrics"] = {}
        for name, metric in metrics.items():
            value = getattr(metric, "get_last_step_info", metric.get_last_step_value)()
            shown[name.lower()] = value
            if not isinstance(value, str):
                trainer.run.events.gauge(f"{mode}/{name.lower()}", lambda value=value: value)


class LogMemoryByEpochHook(_LogHook):
    """Logs how much memory is in use at most; of the host, where there is no accelerator.

    Args:
        logger: the trainer's, if None.
        interval: in epochs.
        log_eval: also after tests.
        report_cpu: the host's, too, where there is an accelerator.
        priority: see `BaseHook`.
    """

    def __init__(
        self,
        logger: Any = None,
        interval: int = 1,
        log_eval: bool = True,
        report_cpu: bool = False,
        priority: int = 10,
    ) -> None:
        super().__init__(logger, interval, priority)
        self.log_eval, self.report_cpu = log_eval, report_cpu

    def before_train(self, trainer: Any) -> None:
        """What there is before the first step."""
        self._log(trainer, "Before Train")

    def after_train_epoch(self, trainer: Any) -> None:
        """The peak of the epoch."""
        if self.due(trainer):
            self._log(trainer, f"[Epoch {trainer.run.epoch_in_hand} / Train]")

    def after_test(self, trainer: Any) -> None:
        """The peak of the test."""
        if self.log_eval and self.due(trainer):
            self._log(trainer, f"[Epoch {trainer.run.epoch_in_hand} / Test]")

    def _log(self, trainer: Any, prefix: str) -> None:
        device, parts = trainer.engine.core.device, []
        if device.type != "cpu":  # untested: no such device here
            stats = torch.accelerator.memory_stats(device)
            for name in ("allocated", "reserved"):
                now, most = (stats[f"{name}_bytes.all.{k}"] / 2**20 for k in ("current", "peak"))
                parts.append(f"{name} {now:.1f} MB, at most {most:.1f} MB")
            torch.accelerator.reset_peak_memory_stats(device)
        host = host_peak_gib()
        if host is not None and (not parts or self.report_cpu):
            parts.append(f"host at most {host * 1024:.1f} MB")
        self.say(trainer, f"{prefix}: memory {', '.join(parts) or 'unknown here'}")


class LogTimingByEpochHook(_LogHook):
    """Logs the last and mean seconds of the steps of an epoch, and of the epoch.

    Args:
        timer: the trainer's, if None.
        logger: the trainer's, if None.
        interval: in epochs.
        log_eval: also of tests.
        ignore_num_train_steps: leave out the first steps of the run, which warm up.
        priority: see `BaseHook`.
    """

    timed = True

    def __init__(
        self,
        timer: Any = None,
        logger: Any = None,
        interval: int = 1,
        log_eval: bool = True,
        ignore_num_train_steps: int = 0,
        priority: int = 10,
    ) -> None:
        super().__init__(logger, interval, priority)
        self.timer, self.log_eval = timer, log_eval
        self.ignore_num_train_steps = ignore_num_train_steps

    def after_hook_is_attached(self, trainer: Any) -> None:
        """Let the trainer's timer leave out the first steps."""
        trainer.ignored_steps = self.ignore_num_train_steps
        if self.timer not in (None, trainer.timer):
            raise ValueError(
                "LogTimingByEpochHook has another timer than the Trainer: give it to both"
            )

    def after_train_epoch(self, trainer: Any) -> None:
        """A line for the training."""
        if self.due(trainer):
            self._log(trainer, "Train")

    def after_test_epoch(self, trainer: Any) -> None:
        """A line for the test."""
        if self.log_eval and self.due(trainer):
            self._log(trainer, "Test")

    def _log(self, trainer: Any, mode: str) -> None:
        parts = [
            f"{name}: last = {timer.get_elapsed_time():.5g} s, "
            f"mean = {timer.get_history_mean():.5g} s"
            for name, timer in trainer.timer
            if name.startswith(mode) and timer.has_history
        ]
        count = f", #steps/epoch = {trainer.steps_per_epoch}" if mode == "Train" else ""
        epoch = trainer.run.epoch_in_hand
        self.say(trainer, f"[Epoch {epoch} / {mode}]: {' | '.join(parts)}{count}")


class TensorboardHook(BaseHook):
    """Writes metrics for TensorBoard, under ``{Metric}/train`` and ``{Metric}/test``.

    Args:
        log_dir: each process writes into a folder of its own below it.
        ranks: the processes that write; all if None.
        parallel_mode: the group that the ranks are counted in: the global one.
        dp_rank_0_only, tp_rank_0_only: older words for ``ranks=[0]``.
        priority: see `BaseHook`.
    """

    def __init__(
        self,
        log_dir: str | Path,
        ranks: Sequence[int] | None = None,
        parallel_mode: ParallelMode = ParallelMode.GLOBAL,
        priority: int = 10,
        *,
        dp_rank_0_only: bool = False,
        tp_rank_0_only: bool = False,
    ) -> None:
        super().__init__(priority)
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise ImportError(
                "TensorboardHook needs the package 'tensorboard': pip install 'stoker[tensorboard]'"
            ) from error
        if parallel_mode is not ParallelMode.GLOBAL:
            raise ValueError(f"ranks are counted in ParallelMode.GLOBAL, got {parallel_mode}")
        self._make: Any = SummaryWriter
        self._dir = Path(log_dir)
        self._ranks = [0] if dp_rank_0_only or tp_rank_0_only else ranks
        self._writer: Any = None

    def after_train_iter(self, trainer: Any, output: Any, label: Any, loss: Any) -> None:
        """The metrics of the step."""
        self._write(trainer, "train", epoch=False)

    def after_train_epoch(self, trainer: Any) -> None:
        """The metrics of the epoch."""
        self._write(trainer, "train", epoch=True)

    def after_test_iter(self, trainer: Any, output: Any, label: Any, loss: Any) -> None:
        """The metrics of the test batch."""
        self._write(trainer, "test", epoch=False)

    def after_test_epoch(self, trainer: Any) -> None:
        """The metrics of the test."""
        self._write(trainer, "test", epoch=True)

    def after_test(self, trainer: Any) -> None:
        """Close the file after a test that is no part of a training."""
        if trainer.run.task != "fit":
            self.after_train(trainer)

    def after_train(self, trainer: Any) -> None:
        """Close the file."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def _write(self, trainer: Any, mode: str, *, epoch: bool) -> None:
        metrics = trainer.states.get("metrics", {}).get(mode, {})
        values = {
            name: metric.get_accumulated_value() if epoch else metric.get_last_step_value()
            for name, metric in metrics.items()
            if metric.epoch_only == epoch
        }
        rank, step = dist.rank(), trainer.run.step
        if not values or (self._ranks is not None and rank not in self._ranks):
            return
        if self._writer is None:
            folder, suffix = self._dir / f"global_rank_{rank}", f"_rank_{rank}"
            resumed = step if step > 1 else None  # what a killed run wrote beyond is passed over
            self._writer = self._make(str(folder), filename_suffix=suffix, purge_step=resumed)
        for name, value in values.items():
            self._writer.add_scalar(f"{name}/{mode}", value, step)
        self._writer.flush()
