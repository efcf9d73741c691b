"""Metrics: numbers gathered over steps, which hooks share through ``trainer.states['metrics']``."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

from torch import Tensor

from stoker.core import dist
from stoker.core.types import Scalar, Stateful
from stoker.metrics import Accuracy, Mean

_SAVED = (Stateful, Tensor, bool, int, float, str, list, dict, type(None))


class Metric(ABC):
    """A number of the last step, and one over all steps since the last reset.

    `get_accumulated_value` may be read any number of times; among several processes each reads it.
    Attributes that are plain values or tensors survive a restart.
    """

    def __init__(self, epoch_only: bool) -> None:
        self._epoch_only = epoch_only

    epoch_only = property(
        lambda self: self._epoch_only, doc="Whether it means something only over a whole epoch."
    )

    @abstractmethod
    def reset(self) -> None:
        """Forget all steps."""

    @abstractmethod
    def update(self, *args: Any, **kwargs: Any) -> None:
        """Take in a step."""

    @abstractmethod
    def get_last_step_value(self) -> float:
        """The value of the last step."""

    @abstractmethod
    def get_accumulated_value(self) -> float:
        """The value over all steps."""

    @staticmethod
    @abstractmethod
    def is_better(a: float, b: float) -> bool:
        """Whether ``a`` is better than ``b``."""

    def state_dict(self) -> dict[str, Any]:
        """What must survive a restart."""
        saved = {name: value for name, value in vars(self).items() if isinstance(value, _SAVED)}
        return {n: v.state_dict() if isinstance(v, Stateful) else v for n, v in saved.items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take back what `state_dict` gave."""
        for name, value in state.items():
            own = getattr(self, name, None)
            if isinstance(own, Stateful):
                own.load_state_dict(value)
            else:
                setattr(self, name, value)


class _Gathered(Metric):
    """A metric of Stoker's over all steps; more is better."""

    def __init__(self, epoch_only: bool, over_all: Mean | Accuracy) -> None:
        super().__init__(epoch_only)
        self._all: Any = over_all
        self._last: Scalar = float("nan")

    def reset(self) -> None:
        """Forget all steps."""
        self._all.reset()

    def update(self, value: Scalar, weight: float = 1.0) -> None:
        """Take in the value of a step, which counts ``weight`` times."""
        self._last = value
        self._all.update(value, weight)

    def get_last_step_value(self) -> float:
        """The value of the last step, in this process."""
        return float(self._last)

    def get_accumulated_value(self) -> float:
        """The value over all steps of all processes."""
        value: float = self._all.compute()
        return value

    @staticmethod
    def is_better(a: float, b: float) -> bool:
        """More is better."""
        return a > b


class LossMetric(_Gathered):
    """The loss, as a mean over samples."""

    def __init__(self, epoch_only: bool) -> None:
        super().__init__(epoch_only, Mean())

    @staticmethod
    def is_better(a: float, b: float) -> bool:
        """Less is better."""
        return a < b


class LearningRateMetric(_Gathered):
    """The learning rate that the last update was made with; no rate is better than another."""

    def __init__(self, epoch_only: bool, initial_lr: float = 0.0) -> None:
        super().__init__(epoch_only, Mean())
        self._last = initial_lr

    def update(self, lr: float) -> None:  # type: ignore[override]
        """An update was made with this rate."""
        self._last = lr

    get_accumulated_value = _Gathered.get_last_step_value

    @staticmethod
    def is_better(a: float, b: float) -> bool:
        """Neither is."""
        return False


class AccuracyMetric(_Gathered):
    """The share of samples that were right.

    ``accuracy_func`` gives the number of right ones for ``(output, label)``; without one the
    largest output is meant to be at the label.
    """

    def __init__(
        self, epoch_only: bool = True, accuracy_func: Callable[[Any, Any], Any] | None = None
    ) -> None:
        super().__init__(epoch_only, Accuracy() if accuracy_func is None else Mean())
        self._func, self._step = accuracy_func, Accuracy()

    def update(self, output: Any, label: Any, batch_size: float) -> None:  # type: ignore[override]
        """Take in a step over so many samples."""
        if self._func is not None:
            super().update(float(self._func(output, label)) / batch_size, batch_size)
            return
        self._all.update(output, label)
        self._step.reset()
        self._step.update(output, label)

    def get_last_step_value(self) -> float:
        """The share of the last step, in this process."""
        if self._func is not None:
            return super().get_last_step_value()
        with dist.alone():
            return self._step.compute()


class ThroughputMetric(_Gathered):
    """Samples per second, and TFLOPs per second where ``tflop_per_step`` is known.

    The first ``ignored_steps`` warm up and are left out once; ``use_local`` means this process.
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
        """Take in a step with its seconds."""
        self._last, self._seconds = num_samples / time if time else 0.0, time
        if self.ignored_steps:
            self.ignored_steps -= 1
        else:
            self._all.update(self._last, time)

    def get_last_step_info(self) -> str:
        """The value of the last step in words."""
        tflops = self.tflop_per_step / self._seconds if self._seconds else 0.0
        more = f", {tflops:.5g} TFLOPs" if self.tflop_per_step else ""
        return f"{self.get_last_step_value():.5g} samples/s{more}"

    def get_accumulated_value(self) -> float:
        """Samples per second over all steps, 0 where there are none."""
        with dist.alone() if self.use_local else nullcontext():
            value = super().get_accumulated_value()
        return value if value == value else 0.0  # noqa: PLR0124
