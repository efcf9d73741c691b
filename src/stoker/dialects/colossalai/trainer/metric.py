"""Metrics: numbers gathered over steps, which hooks share through ``trainer.states['metrics']``."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

from torch import Tensor

from stoker import dist
from stoker.metrics import Accuracy, Mean
from stoker.types import Scalar, Stateful

_SAVED = (Stateful, Tensor, bool, int, float, str, list, dict, type(None))


class Metric(ABC):
    """A number of the last step, and one over all steps since the last reset.

    `get_accumulated_value` may be read any number of times; among several processes each reads it.
    Attributes that are plain values or tensors survive a restart.

    Args:
        epoch_only: whether it means something only over a whole epoch.
    """

    def __init__(self, epoch_only: bool) -> None:
        self._epoch_only = epoch_only

    @property
    def epoch_only(self) -> bool:
        """Whether it means something only over a whole epoch."""
        return self._epoch_only

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


class LossMetric(Metric):
    """The loss, as a mean over samples."""

    def __init__(self, epoch_only: bool) -> None:
        super().__init__(epoch_only)
        self._mean, self._last = Mean(), float("nan")

    def reset(self) -> None:
        """Forget all steps."""
        self._mean.reset()

    def update(self, loss: Scalar, batch_size: float = 1.0) -> None:
        """Take in the loss of a step over so many samples."""
        self._last = loss  # type: ignore[assignment]
        self._mean.update(loss, batch_size)

    def get_last_step_value(self) -> float:
        """The loss of the last step."""
        return float(self._last)

    def get_accumulated_value(self) -> float:
        """The mean over all samples of all processes."""
        return self._mean.compute()

    @staticmethod
    def is_better(a: float, b: float) -> bool:
        """Less is better."""
        return a < b


class LearningRateMetric(Metric):
    """The learning rate that the last update was made with."""

    def __init__(self, epoch_only: bool, initial_lr: float = 0.0) -> None:
        super().__init__(epoch_only)
        self.lr = initial_lr

    def reset(self) -> None:
        """There is nothing to forget."""

    def update(self, lr: float) -> None:
        """An update was made with this rate."""
        self.lr = lr

    def get_last_step_value(self) -> float:
        """The rate."""
        return self.lr

    def get_accumulated_value(self) -> float:
        """The rate."""
        return self.lr

    @staticmethod
    def is_better(a: float, b: float) -> bool:
        """No rate is better than another."""
        return False


class AccuracyMetric(Metric):
    """The share of samples that were right.

    Args:
        epoch_only: see `Metric`.
        accuracy_func: gives the number of right ones for ``(output, label)``; without one the
            largest output is meant to be at the label.
    """

    def __init__(
        self, epoch_only: bool = True, accuracy_func: Callable[[Any, Any], Any] | None = None
    ) -> None:
        super().__init__(epoch_only)
        self._func = accuracy_func
        self._argmax, self._last = Accuracy(), Accuracy()
        self._right, self._count, self._last_right, self._last_count = 0.0, 0.0, 0.0, 0.0

    def reset(self) -> None:
        """Forget all steps."""
        self._argmax.reset()
        self._right = self._count = 0.0

    def update(self, output: Any, label: Any, batch_size: float) -> None:
        """Take in a step over so many samples."""
        if self._func is None:
            self._last.reset()
            self._argmax.update(output, label)
            self._last.update(output, label)
            return
        self._last_right, self._last_count = float(self._func(output, label)), batch_size
        self._right += self._last_right
        self._count += batch_size

    def get_last_step_value(self) -> float:
        """The share of the last step, in this process."""
        if self._func is None:
            with dist.alone():
                return self._last.compute()
        return self._last_right / (self._last_count or 1.0)

    def get_accumulated_value(self) -> float:
        """The share of all samples of all processes."""
        if self._func is None:
            return self._argmax.compute()
        right, count = dist.all_sum(self._right, self._count)
        return right / count if count else float("nan")

    @staticmethod
    def is_better(a: float, b: float) -> bool:
        """More is better."""
        return a > b


class ThroughputMetric(Metric):
    """Samples per second, and TFLOPs per second where the work of a step is known.

    Args:
        epoch_only: see `Metric`.
        ignored_steps: leave out the first steps, which warm up.
        tflop_per_step: the work of a step.
        use_local: of this process alone.
    """

    def __init__(
        self,
        epoch_only: bool = True,
        ignored_steps: int = 0,
        tflop_per_step: float = 0,
        use_local: bool = False,
    ) -> None:
        super().__init__(epoch_only)
        self.ignored_steps, self.tflop_per_step, self.use_local = (
            ignored_steps,
            tflop_per_step,
            use_local,
        )
        self._ignored = 0
        self._last = self._all = (0.0, 0.0)

    def reset(self) -> None:
        """Forget all steps but those that were ignored."""
        self._all = (0.0, 0.0)

    def update(self, num_samples: float, time: float) -> None:
        """Take in a step with its seconds."""
        self._last = (num_samples, time)
        if self._ignored < self.ignored_steps:
            self._ignored += 1
        else:
            self._all = (self._all[0] + num_samples, self._all[1] + time)

    def get_last_step_value(self) -> float:
        """Samples per second in the last step."""
        return self._last[0] / self._last[1] if self._last[1] else 0.0

    def get_last_step_info(self) -> str:
        """The same in words."""
        tflops = self.tflop_per_step / self._last[1] if self._last[1] else 0.0
        more = f", {tflops:.5g} TFLOPs" if self.tflop_per_step else ""
        return f"{self.get_last_step_value():.5g} samples/s{more}"

    def get_accumulated_value(self) -> float:
        """Samples per second over all steps."""
        return self._all[0] / self._all[1] if self._all[1] else 0.0

    @staticmethod
    def is_better(a: float, b: float) -> bool:
        """More is better."""
        return a > b
