"""Hooks that compute metrics."""

from collections.abc import Callable
from typing import Any

from stoker.dialects.colossalai.trainer.hooks._base_hook import BaseHook
from stoker.dialects.colossalai.trainer.metric import (
    AccuracyMetric,
    LossMetric,
    Metric,
    ThroughputMetric,
)


class MetricHook(BaseHook):
    """Base class of hooks that compute metrics and share them in ``trainer.states['metrics']``.

    Override `after_hook_is_attached`, call it with ``super()``, and add your `Metric` objects to
    ``trainer.states['metrics']['train']`` or ``['test']`` under their names.
    """

    priority = 0

    def after_hook_is_attached(self, trainer: Any) -> None:
        """Create ``trainer.states['metrics']``."""
        self.init_runner_states(trainer, "metrics", {"train": {}, "test": {}})


class _TestMetricHook(MetricHook):
    """Compute a metric over tests, reported as `label`."""

    label = ""

    def __init__(self, priority: int, **metrics: Metric) -> None:
        super().__init__(priority)
        self.metrics: dict[str, Any] = metrics

    def after_hook_is_attached(self, trainer: Any) -> None:
        """Register the metrics."""
        super().after_hook_is_attached(trainer)
        for mode, metric in self.metrics.items():
            trainer.states["metrics"][mode][self.label] = metric

    def before_test(self, trainer: Any) -> None:
        """Reset the metric."""
        self.metrics["test"].reset()

    def after_test_iter(self, trainer: Any, output: Any, label: Any, loss: Any) -> None:
        """Add a test batch."""
        self.add("test", trainer, output, label, loss)

    def add(self, mode: str, trainer: Any, output: Any, label: Any, loss: Any) -> None:
        """Add the result of an iteration."""


class _TrainTestMetricHook(_TestMetricHook):
    """Compute a metric over training and tests."""

    def before_train_epoch(self, trainer: Any) -> None:
        """Reset the metric."""
        self.metrics["train"].reset()

    def after_train_iter(self, trainer: Any, output: Any, label: Any, loss: Any) -> None:
        """Add a step, unless its update was skipped."""
        if trainer.run.updated:
            self.add("train", trainer, output, label, loss)


class LossHook(_TrainTestMetricHook):
    """Report the metric "Loss" of training and tests."""

    label = "Loss"

    def __init__(self, priority: int = 0) -> None:
        self.train_loss, self.test_loss = LossMetric(epoch_only=False), LossMetric(epoch_only=True)
        super().__init__(priority, train=self.train_loss, test=self.test_loss)

    def add(self, mode: str, trainer: Any, output: Any, label: Any, loss: Any) -> None:
        """Add the loss."""
        size = trainer.schedule.batch_size
        if loss is not None and size:
            self.metrics[mode].update(
                loss / size if trainer.engine.core.loss_is_sum else loss, size
            )


class AccuracyHook(_TestMetricHook):
    """Report the metric "Accuracy" of tests; see `AccuracyMetric` for ``accuracy_func``."""

    label = "Accuracy"

    def __init__(
        self, accuracy_func: Callable[[Any, Any], Any] | None = None, priority: int = 0
    ) -> None:
        self.metric = AccuracyMetric(epoch_only=True, accuracy_func=accuracy_func)
        super().__init__(priority, test=self.metric)

    def add(self, mode: str, trainer: Any, output: Any, label: Any, loss: Any) -> None:
        """Add outputs and labels."""
        if output is None and not trainer.returns_outputs:
            raise ValueError("AccuracyHook needs outputs: remove return_output_label=False")
        if output is not None and trainer.schedule.batch_size:
            self.metrics[mode].update(output, label, trainer.schedule.batch_size)


Accuracy1DHook = Accuracy2DHook = Accuracy2p5DHook = AccuracyHook


class Accuracy3DHook(AccuracyHook):
    """An `AccuracyHook`; outputs are never split, so the modes have no effect."""

    def __init__(
        self, input_parallel_mode: Any = None, weight_parallel_mode: Any = None, priority: int = 10
    ) -> None:
        super().__init__(None, priority)


class ThroughputHook(_TrainTestMetricHook):
    """Report the metric "Throughput" in samples per second; see `ThroughputMetric`."""

    label = "Throughput"
    timed = True

    def __init__(
        self,
        ignored_steps: int = 0,
        tflop_per_step: float = 0,
        use_local: bool = False,
        priority: int = 10,
    ) -> None:
        train = ThroughputMetric(True, ignored_steps, tflop_per_step, use_local)
        test = ThroughputMetric(True, 0, tflop_per_step, use_local)
        super().__init__(priority, train=train, test=test)

    def add(self, mode: str, trainer: Any, output: Any, label: Any, loss: Any) -> None:
        """Add samples and seconds."""
        parts = 1 if self.metrics[mode].use_local else trainer.engine.core.parallel_model.data_ranks
        seconds = trainer.timer.get_timer(f"{mode}-step").get_elapsed_time()
        self.metrics[mode].update(sum(trainer.run.sizes) * parts, seconds)
