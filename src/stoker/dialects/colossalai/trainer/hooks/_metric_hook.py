"""Hooks that gather metrics."""

from collections.abc import Callable
from typing import Any

from stoker.dialects.colossalai.trainer.hooks._base_hook import BaseHook
from stoker.dialects.colossalai.trainer.metric import AccuracyMetric, LossMetric, ThroughputMetric


class MetricHook(BaseHook):
    """Base of hooks that gather a metric: put it into ``trainer.states['metrics']`` when attached.

    Override `after_hook_is_attached`, call it with ``super()``, and add your `Metric` objects to
    ``trainer.states['metrics']['train']`` or ``['test']`` under their names.
    """

    priority = 0

    def after_hook_is_attached(self, trainer: Any) -> None:
        """Make the place for metrics."""
        self.init_runner_states(trainer, "metrics", {"train": {}, "test": {}})


class LossHook(MetricHook):
    """The metric "Loss" of training and of tests."""

    def __init__(self, priority: int = 0) -> None:
        super().__init__(priority)
        self.train_loss, self.test_loss = LossMetric(epoch_only=False), LossMetric(epoch_only=True)

    def after_hook_is_attached(self, trainer: Any) -> None:
        """Register the metrics."""
        super().after_hook_is_attached(trainer)
        trainer.states["metrics"]["train"]["Loss"] = self.train_loss
        trainer.states["metrics"]["test"]["Loss"] = self.test_loss

    def before_train_epoch(self, trainer: Any) -> None:
        """Start anew."""
        self.train_loss.reset()

    def after_train_iter(self, trainer: Any, output: Any, label: Any, loss: Any) -> None:
        """Take in a step."""
        if trainer.run.updated:  # a loss that made no update spoils no mean
            self._add(self.train_loss, trainer, loss)

    def before_test_epoch(self, trainer: Any) -> None:
        """Start anew."""
        self.test_loss.reset()

    def after_test_iter(self, trainer: Any, output: Any, label: Any, loss: Any) -> None:
        """Take in a test batch."""
        self._add(self.test_loss, trainer, loss)

    def _add(self, metric: LossMetric, trainer: Any, loss: Any) -> None:
        size = trainer.schedule.batch_size
        if loss is not None and size:
            metric.update(loss / size if trainer.engine.core.sums else loss, size)


class AccuracyHook(MetricHook):
    """The metric "Accuracy" of tests.

    Args:
        accuracy_func: gives the number of right ones for ``(output, label)``; without one the
            largest output is meant to be at the label.
        priority: see `BaseHook`.
    """

    def __init__(
        self, accuracy_func: Callable[[Any, Any], Any] | None = None, priority: int = 0
    ) -> None:
        super().__init__(priority)
        self.metric = AccuracyMetric(epoch_only=True, accuracy_func=accuracy_func)

    def after_hook_is_attached(self, trainer: Any) -> None:
        """Register the metric."""
        super().after_hook_is_attached(trainer)
        trainer.states["metrics"]["test"]["Accuracy"] = self.metric

    def before_test(self, trainer: Any) -> None:
        """Start anew."""
        self.metric.reset()

    def after_test_iter(self, trainer: Any, output: Any, label: Any, loss: Any) -> None:
        """Take in a test batch."""
        if output is None and not trainer.returns_outputs:
            raise ValueError("AccuracyHook needs outputs: leave out return_output_label=False")
        if output is not None and trainer.schedule.batch_size:
            self.metric.update(output, label, trainer.schedule.batch_size)


Accuracy1DHook = Accuracy2DHook = Accuracy2p5DHook = AccuracyHook


class Accuracy3DHook(AccuracyHook):
    """The same; outputs come whole, however layers are split, so the modes change nothing."""

    def __init__(
        self, input_parallel_mode: Any = None, weight_parallel_mode: Any = None, priority: int = 10
    ) -> None:
        super().__init__(None, priority)


class ThroughputHook(MetricHook):
    """The metric "Throughput": samples per second; see `ThroughputMetric`."""

    timed = True

    def __init__(
        self,
        ignored_steps: int = 0,
        tflop_per_step: float = 0,
        use_local: bool = False,
        priority: int = 10,
    ) -> None:
        super().__init__(priority)
        options = (True, ignored_steps, tflop_per_step, use_local)
        self.metrics = {
            "train": ThroughputMetric(*options),
            "test": ThroughputMetric(True, 0, tflop_per_step, use_local),
        }

    def after_hook_is_attached(self, trainer: Any) -> None:
        """Register the metrics."""
        super().after_hook_is_attached(trainer)
        for mode, metric in self.metrics.items():
            trainer.states["metrics"][mode]["Throughput"] = metric

    def before_train_epoch(self, trainer: Any) -> None:
        """Start anew."""
        self.metrics["train"].reset()

    def after_train_iter(self, trainer: Any, output: Any, label: Any, loss: Any) -> None:
        """Take in a step."""
        self._add("train", trainer)

    def before_test(self, trainer: Any) -> None:
        """Start anew."""
        self.metrics["test"].reset()

    def after_test_iter(self, trainer: Any, output: Any, label: Any, loss: Any) -> None:
        """Take in a test batch."""
        self._add("test", trainer)

    def _add(self, mode: str, trainer: Any) -> None:
        metric = self.metrics[mode]
        parts = 1 if metric.use_local else trainer.engine.core.arrangement.parts
        seconds = trainer.timer.get_timer(f"{mode}-step").get_elapsed_time()
        metric.update(sum(trainer.run.sizes) * parts, seconds)
