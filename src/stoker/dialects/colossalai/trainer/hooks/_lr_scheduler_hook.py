"""`LRSchedulerHook`: step the LR scheduler."""

from collections.abc import Mapping
from typing import Any

from stoker.dialects.colossalai.builder import build_from_registry
from stoker.dialects.colossalai.registry import LR_SCHEDULERS
from stoker.dialects.colossalai.trainer.hooks._metric_hook import MetricHook
from stoker.dialects.colossalai.trainer.metric import LearningRateMetric
from stoker.engine.checks import check_scheduler


class LRSchedulerHook(MetricHook):
    """Step the LR scheduler after each update or epoch, and report the rate as the metric "LR".

    The scheduler may be a dict that describes one; ``lr_scheduler_cfg`` is the older name.
    """

    def __init__(
        self,
        lr_scheduler: Any = None,
        by_epoch: bool = True,
        store_lr_in_state: bool = True,
        priority: int = 1,
        *,
        lr_scheduler_cfg: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(priority)
        self.lr_scheduler = lr_scheduler if lr_scheduler_cfg is None else lr_scheduler_cfg
        if self.lr_scheduler is None:
            raise ValueError("LRSchedulerHook needs an lr_scheduler, or a dict that describes one")
        self.by_epoch, self.store_lr_in_state = by_epoch, store_lr_in_state

    def after_hook_is_attached(self, trainer: Any) -> None:
        """Pass the scheduler to the engine, which steps and saves it."""
        super().after_hook_is_attached(trainer)
        core, run = trainer.engine.core, trainer.run
        if isinstance(self.lr_scheduler, Mapping):
            total = run.max_epochs if self.by_epoch else run.total_steps
            self.lr_scheduler = build_from_registry(
                self.lr_scheduler, LR_SCHEDULERS, optimizer=core.optimizer, total_steps=total
            )
        scheduler = getattr(self.lr_scheduler, "of_windows", self.lr_scheduler)
        core.lr_schedulers = check_scheduler(scheduler, core.optimizers)
        core.lr_step = "epoch" if self.by_epoch else "step"
        self._optimizer = core.optimizer
        self.metric = LearningRateMetric(self.by_epoch, self._optimizer.param_groups[0]["lr"])
        if self.store_lr_in_state:
            trainer.states["metrics"]["train"]["LR"] = self.metric

    def before_train_iter(self, trainer: Any) -> None:
        """Record the current rate."""
        self.metric.update(self._optimizer.param_groups[0]["lr"])
