"""Metrics over steps, which hooks share in ``trainer.states['metrics']``."""

import operator
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

from stoker.core import dist
from stoker.core.plain_state import PlainState
from stoker.core.types import Scalar
from stoker.metrics import Accuracy, Mean


class Metric(PlainState, ABC):
    """A value of the last step, and a value over all steps since the last reset.

    With several processes, every process must call `get_accumulated_value`. Attributes that are
    plain values or tensors are saved in checkpoints.
    """

    def __init__(self, epoch_only: bool) -> None:
        self._epoch_only = epoch_only

    epoch_only = property(
        lambda self: self._epoch_only, doc="Whether it is only meaningful over a complete epoch."
    )

    @abstractmethod
    def reset(self) -> None:
        """Discard all steps."""

    @abstractmethod
    def update(self, *args: Any, **kwargs: Any) -> None:
        """Add a step."""

    @abstractmethod
    def get_last_step_value(self) -> float:
        """Return the value of the last step."""

    @abstractmethod
    def get_accumulated_value(self) -> float:
        """Return the value over all steps."""

    @staticmethod
    @abstractmethod
    def is_better(a: float, b: float) -> bool:
        """Return whether ``a`` is better than ``b``."""


class _AccumulatedMetric(Metric):
    """A Stoker metric over all steps; higher is better."""

    def __init__(self, epoch_only: bool, over_all: Mean | Accuracy) -> None:
        super().__init__(epoch_only)
        self._all: Any = over_all
        self._last: Scalar = float("nan")

    def reset(self) -> None:
        self._all.reset()

    def update(self, value: Scalar, weight: float = 1.0) -> None:
        self._last = value
        self._all.update(value, weight)

    def get_last_step_value(self) -> float:
        """Return the value of the last step in this process."""
        return float(self._last)

    def get_accumulated_value(self) -> float:
        return float(self._all.compute())

    is_better: Any = staticmethod(operator.gt)


class LossMetric(_AccumulatedMetric):
    """The mean loss over samples."""

    def __init__(self, epoch_only: bool) -> None:
        super().__init__(epoch_only, Mean())

    is_better = staticmethod(operator.lt)


class LearningRateMetric(_AccumulatedMetric):
    """The learning rate of the last update; no rate is better than another."""

    def __init__(self, epoch_only: bool, initial_lr: float = 0.0) -> None:
        super().__init__(epoch_only, Mean())
        self._last = initial_lr

    def update(self, lr: float) -> None:  # type: ignore[override]
        """Set the rate of the last update."""
        self._last = lr

    get_accumulated_value = _AccumulatedMetric.get_last_step_value

    is_better = staticmethod(lambda a, b: False)


class AccuracyMetric(_AccumulatedMetric):
    """The fraction of correct samples.

    ``accuracy_func(output, label)`` returns the number of correct samples; by default a sample is
    correct if its largest output is at the label.
    """

    def __init__(
        self, epoch_only: bool = True, accuracy_func: Callable[[Any, Any], Any] | None = None
    ) -> None:
        super().__init__(epoch_only, Accuracy() if accuracy_func is None else Mean())
        self._func, self._step = accuracy_func, Accuracy()

    def update(self, output: Any, label: Any, batch_size: float) -> None:  # type: ignore[override]
        """Add a step of ``batch_size`` samples; of several outputs and labels the first count."""
        output, label = (
            one[0] if isinstance(one, list | tuple) else one for one in (output, label)
        )
        if self._func is not None:
            super().update(float(self._func(output, label)) / batch_size, batch_size)
            return
        self._all.update(output, label)
        self._step.reset()
        self._step.update(output, label)

    def get_last_step_value(self) -> float:
        """Return the accuracy of the last step in this process."""
        if self._func is not None:
            return super().get_last_step_value()
        with dist.alone():
            return self._step.compute()


class ThroughputMetric(_AccumulatedMetric):
    """Samples per second, and TFLOPS if ``tflop_per_step`` is given.

    The first ``ignored_steps`` are excluded; ``use_local`` counts only this process.
    """

    def __init__(
        self,
        epoch_only: bool = True,
        ignored_steps: int = 0,
        tflop_per_step: float = 0,
        use_local: bool = False,
    ) -> None:
        super().__init__(epoch_only, Mean())
        self.tflop_per_step, self.use_local = tflop_per_step, use_local
        self.ignored_steps, self._seconds = ignored_steps, 0.0

    def update(self, num_samples: float, time: float) -> None:  # type: ignore[override]
        """Add a step and its seconds."""
        self._last, self._seconds = num_samples / time if time else 0.0, time
        if self.ignored_steps:
            self.ignored_steps -= 1
        else:
            self._all.update(self._last, time)

    def get_last_step_info(self) -> str:
        """Return a description of the last step."""
        tflops = self.tflop_per_step / self._seconds if self._seconds else 0.0
        more = f", {tflops:.5g} TFLOPs" if self.tflop_per_step else ""
        return f"{self.get_last_step_value():.5g} samples/s{more}"

    def get_accumulated_value(self) -> float:
        """Return samples per second over all steps, or 0 if there are none."""
        with dist.alone() if self.use_local else nullcontext():
            value = super().get_accumulated_value()
        return value if value == value else 0.0  # noqa: PLR0124
