"""`BaseHook`, its translation to Stoker, and the hooks that compute metrics or set the rate."""

from collections.abc import Callable, Mapping
from typing import Any

from stoker import Hook, Run
from stoker.dialects.adapter import Adapter, overridden
from stoker.dialects.colossalai.metric import (
    AccuracyMetric,
    LearningRateMetric,
    LossMetric,
    Metric,
    ThroughputMetric,
)
from stoker.dialects.colossalai.registry import build_lr_scheduler
from stoker.dialects.script_step import accepts
from stoker.engine.checks import check_scheduler

_POINTS = {
    "after_hook_is_attached": ("attach", 0, "once, when a fit or an evaluation begins"),
    "before_train": ("before_train", 0, "before the first epoch"),
    "before_train_epoch": ("before_epoch", 0, "before each epoch"),
    "before_train_iter": ("before_step", 0, "before each iteration"),
    "after_train_iter": ("after_step", 0, "after each iteration, with its output, label and loss"),
    "after_train_epoch": ("after_train_epoch", 0, "after each epoch, before its test"),
    "before_test": ("before_val", 0, "before a test"),
    "before_test_epoch": ("before_val", 1, "before a test, after ``before_test`` of all hooks"),
    "before_test_iter": ("before_val_step", 0, "before each batch of a test"),
    "after_test_iter": ("after_val_step", 0, "after each batch, with its output, label and loss"),
    "after_test_epoch": ("after_val", -1, "after a test, before ``after_test`` of all hooks"),
    "after_test": ("after_val", 0, "after a test"),
    "after_train": ("after_train", 0, "after the last epoch"),
}
"""The point of Stoker for each, whether it runs before (-1) or after (1) others there, and when."""

_OFFSET = 1_000_000


class BaseHook:
    """Code at points of training; hooks with a lower `priority` run earlier.

        after_hook_is_attached
        before_train
          before_train_epoch
            before_train_iter    after_train_iter(trainer, output, label, loss)
          after_train_epoch
          before_test
            before_test_epoch
              before_test_iter   after_test_iter(trainer, output, label, loss)
            after_test_epoch
          after_test
        after_train

    Every method takes the trainer first; ``trainer.cur_step`` is the index of the current step even
    after it. `after_train` runs after a failure too. In the older style a hook is created with its
    trainer, ``BaseHook(trainer, priority)``, and its methods do not take it; both are supported.
    Define ``state_dict`` and ``load_state_dict`` for state that must be restored on resume.
    """

    priority: int = 10
    timed: bool = False
    """Whether the hook needs the trainer's timer."""

    def __init__(self, *given: Any, trainer: Any = None, priority: int | None = None) -> None:
        left = list(given)
        priority = left.pop() if priority is None and left else priority
        trainer = left.pop() if trainer is None and left else trainer
        if left or not isinstance(priority, int | None):
            raise TypeError(
                f"BaseHook got {given}, expected a priority, or a trainer and a priority"
            )
        self.priority = self.priority if priority is None else priority
        if trainer is not None:
            self.trainer, self.logger = trainer, trainer.logger

    def init_runner_states(self, trainer: Any, key: str, val: Any) -> None:
        """Set ``trainer.states[key]`` if it is not set."""
        trainer.states.setdefault(key, val)

    def natives(self, name: str, trainer: Any) -> list[Hook]:
        """Return the Stoker hooks that call this one."""
        # These hooks make no requests, so ranks need not agree on any.
        main = Adapter(self, name, self.priority, same_on_all_ranks=True)
        others: list[Hook] = []
        for point in overridden(self, BaseHook, _POINTS):
            place, turn, _ = _POINTS[point]
            hook = main
            if turn:
                turned = self.priority + turn * _OFFSET
                hook = Adapter(None, f"{name}.{point}", turned, same_on_all_ranks=True)
                others.append(hook)
            hook.place(point, place, _call(point, getattr(self, point), trainer))
        return [main, *others]


def _call(point: str, method: Any, trainer: Any) -> Any:
    after_iter = point in ("after_train_iter", "after_test_iter")
    first = (trainer,) if accepts(method, *range(4 if after_iter else 1)) else ()
    if not after_iter:
        return lambda run: method(*first)
    late = point == "after_train_iter"

    def call(run: Run) -> None:
        trainer.late = late and run.updated
        method(*first, *trainer.seen(run))
        trainer.late = False

    return call


def _point(when: str) -> Any:
    """Return a method that does nothing, for a point that a subclass may override."""

    def nothing(self: Any, *given: Any) -> None: ...

    nothing.__doc__ = f"Called {when}; the first argument is the trainer."
    return nothing


for _name, _described in _POINTS.items():
    setattr(BaseHook, _name, _point(_described[2]))
BasicHook = BaseHook


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
        super().after_hook_is_attached(trainer)
        for mode, metric in self.metrics.items():
            trainer.states["metrics"][mode][self.label] = metric

    def before_test(self, trainer: Any) -> None:
        self.metrics["test"].reset()

    def after_test_iter(self, trainer: Any, output: Any, label: Any, loss: Any) -> None:
        self.add("test", trainer, output, label, loss)

    def add(self, mode: str, trainer: Any, output: Any, label: Any, loss: Any) -> None:
        """Add the result of an iteration."""


class _TrainTestMetricHook(_TestMetricHook):
    """Compute a metric over training and tests."""

    def before_train_epoch(self, trainer: Any) -> None:
        self.metrics["train"].reset()

    def after_train_iter(self, trainer: Any, output: Any, label: Any, loss: Any) -> None:
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
            self.lr_scheduler = build_lr_scheduler(self.lr_scheduler, core.optimizer, total)
        scheduler = getattr(self.lr_scheduler, "of_windows", self.lr_scheduler)
        if trainer.engine.lr_scheduler not in (None, scheduler):
            raise ValueError("the engine and an LRSchedulerHook have different schedulers")
        core.lr_schedulers = check_scheduler(scheduler, core.optimizers)
        core.lr_step = "epoch" if self.by_epoch else "step"
        self._optimizer = core.optimizer
        self.metric = LearningRateMetric(self.by_epoch, self._optimizer.param_groups[0]["lr"])
        if self.store_lr_in_state:
            trainer.states["metrics"]["train"]["LR"] = self.metric

    def before_train_iter(self, trainer: Any) -> None:
        """Record the current rate."""
        self.metric.update(self._optimizer.param_groups[0]["lr"])
