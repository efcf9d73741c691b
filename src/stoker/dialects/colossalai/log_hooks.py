"""Hooks that report: log lines, values for the progress bar, TensorBoard."""

from collections.abc import Sequence
from functools import partialmethod
from pathlib import Path
from typing import Any

from stoker.core import dist
from stoker.core.errors import check_count
from stoker.dialects.colossalai.hooks import BaseHook
from stoker.dialects.colossalai.ranks import ParallelMode
from stoker.events.writers.tensorboard import summary_writer
from stoker.hooks.memory import describe_memory
from stoker.storage import local_path


class _LogHook(BaseHook):
    """Log every ``interval`` epochs and after the last; by default to the trainer's logger."""

    def __init__(
        self, logger: Any = None, interval: int = 1, log_eval: bool = True, priority: int = 10
    ) -> None:
        super().__init__(priority)
        check_count("interval", interval)
        self.logger, self.interval, self.log_eval = logger, interval, log_eval

    def _log(self, trainer: Any, mode: str) -> None:
        run = trainer.run
        if mode == "test" and not self.log_eval:
            return
        due = run.task != "fit" or run.epoch % self.interval == 0 or run.done
        if due and (text := self.text(trainer, mode)):
            self.log(trainer, f"[Epoch {run.current_epoch} / {mode.title()}]: {text}")

    after_train_epoch: Any = partialmethod(_log, mode="train")
    after_test_epoch: Any = partialmethod(_log, mode="test")

    def log(self, trainer: Any, message: str) -> None:
        (self.logger or trainer.logger).info(message, ranks=[0])

    def text(self, trainer: Any, mode: str) -> str:
        raise NotImplementedError


class LogMetricByEpochHook(_LogHook):
    """Log all metrics: ``[Epoch 1 / Train]: Loss = 0.31 | LR = 0.1``."""

    def __init__(self, logger: Any = None, interval: int = 1, priority: int = 10) -> None:
        super().__init__(logger, interval, priority=priority)

    def text(self, trainer: Any, mode: str) -> str:
        """Return the metrics."""
        values = {n: m.get_accumulated_value() for n, m in trainer.metrics(mode).items()}
        return " | ".join(f"{name} = {value:.5g}" for name, value in values.items())


class LogMetricByStepHook(BaseHook):
    """Put the latest metrics into ``states['step_metrics']``, for the progress bar."""

    def _put(self, trainer: Any, *seen: Any, mode: str) -> None:
        values = trainer.states["step_metrics"] = {}
        for name, metric in trainer.metrics(mode).items():
            value = getattr(metric, "get_last_step_info", metric.get_last_step_value)()
            values[name.lower()] = value
            if not isinstance(value, str):
                trainer.run.events.gauge(f"{mode}/{name.lower()}", lambda value=value: value)

    after_train_iter: Any = partialmethod(_put, mode="train")
    after_test_iter: Any = partialmethod(_put, mode="test")


class LogMemoryByEpochHook(_LogHook):
    """Log the peak memory of the accelerator, or of the host if there is none."""

    def __init__(
        self,
        logger: Any = None,
        interval: int = 1,
        log_eval: bool = True,
        report_cpu: bool = False,
        priority: int = 10,
    ) -> None:
        super().__init__(logger, interval, log_eval, priority)
        self.report_cpu = report_cpu

    def before_train(self, trainer: Any) -> None:
        """Log the memory before the first step."""
        self.log(trainer, f"Before Train: {self.text(trainer, 'train')}")

    def text(self, trainer: Any, mode: str) -> str:
        """Return the peaks."""
        return describe_memory(trainer.engine.core.device, host=self.report_cpu)


class LogTimingByEpochHook(_LogHook):
    """Log the last and mean seconds of the steps of an epoch, and of the epoch.

    ``ignore_num_train_steps`` excludes the first steps of the run. The timer must be the trainer's.
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
        super().__init__(logger, interval, log_eval, priority)
        self.timer, self.ignore_num_train_steps = timer, ignore_num_train_steps

    def after_hook_is_attached(self, trainer: Any) -> None:
        """Exclude the first steps from the trainer's timer."""
        trainer.ignored_steps = self.ignore_num_train_steps
        if self.timer not in (None, trainer.timer):
            raise ValueError(
                "LogTimingByEpochHook was given a different timer than the Trainer: "
                "pass the same to both"
            )

    def text(self, trainer: Any, mode: str) -> str:
        """Return the times of this mode."""
        parts = [
            f"{name}: last = {timer.get_elapsed_time():.5g} s, "
            f"mean = {timer.get_history_mean():.5g} s"
            for name, timer in trainer.timer
            if name.startswith(mode.title()) and timer.has_history
        ]
        count = f", #steps/epoch = {trainer.steps_per_epoch}" if mode == "train" else ""
        return f"{' | '.join(parts)}{count}"


class TensorboardHook(BaseHook):
    """Write metrics to TensorBoard as ``{Metric}/train`` and ``{Metric}/test``.

    Each of the global ``ranks`` (None: all) writes to its own folder in ``log_dir``.
    ``dp_rank_0_only`` and ``tp_rank_0_only`` are older names for ``ranks=[0]``.
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
        if parallel_mode is not ParallelMode.GLOBAL:
            raise ValueError(f"parallel_mode must be ParallelMode.GLOBAL, got {parallel_mode}")
        self._make = summary_writer()
        self._dir = local_path(log_dir, "log_dir")
        self._ranks = [0] if dp_rank_0_only or tp_rank_0_only else ranks
        self._writer: Any = None

    def after_test(self, trainer: Any) -> None:
        """Close the file after a test outside of training."""
        if trainer.run.task != "fit":
            self.after_train(trainer)

    def after_train(self, trainer: Any) -> None:
        """Close the file."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def state_dict(self) -> dict[str, Any]:
        """Flush, so that a checkpoint never precedes its metrics on disk; return no state."""
        if self._writer is not None:
            self._writer.flush()
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore nothing."""

    def _write(self, trainer: Any, *seen: Any, mode: str, epoch: bool) -> None:
        values = {
            name: metric.get_accumulated_value() if epoch else metric.get_last_step_value()
            for name, metric in trainer.metrics(mode).items()
            if metric.epoch_only == epoch
        }
        rank, step = dist.rank(), trainer.run.step
        if not values or (self._ranks is not None and rank not in self._ranks):
            return
        if self._writer is None:
            folder, suffix = self._dir / f"global_rank_{rank}", f"_rank_{rank}"
            resumed = step if step > 1 else None  # discards what a killed run wrote later
            self._writer = self._make(str(folder), filename_suffix=suffix, purge_step=resumed)
        for name, value in values.items():
            self._writer.add_scalar(f"{name}/{mode}", value, step)

    after_train_iter: Any = partialmethod(_write, mode="train", epoch=False)
    after_train_epoch: Any = partialmethod(_write, mode="train", epoch=True)
    after_test_iter: Any = partialmethod(_write, mode="test", epoch=False)
    after_test_epoch: Any = partialmethod(_write, mode="test", epoch=True)
