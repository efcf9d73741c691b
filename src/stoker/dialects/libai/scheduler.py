"""Learning-rate schedules with warmup, which change once per iteration.

The rate rises from ``warmup_factor`` times itself to where the schedule is after ``warmup_iter``
iterations ("linear"), or waits below ("constant"); from there on it is the schedule's.
"""

import logging
import math
from bisect import bisect_right
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

from stoker.dialects.libai.config import instantiate
from stoker.dialects.rates import FormulaLR, schedule

_log = logging.getLogger("libai.scheduler")


class WarmupLR(FormulaLR):
    """A schedule whose formula is the rate itself, which may rise from an initial rate of 0."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        given = self._options
        count, last, method = given["warmup_iter"], given["max_iter"], given["warmup_method"]
        if method not in ("linear", "constant"):
            raise ValueError(f"warmup_method must be 'linear' or 'constant', got {method!r}")
        if count > last:
            _log.warning(f"the warmup of {count} iterations is longer than the run: {last}")

    def get_lr(self) -> list[float]:  # type: ignore[override]
        """Return the rate of each parameter group."""
        return [float(rate(self.last_epoch)) for rate in self.lr_lambdas]


def _schedule(name: str, rate: Callable[..., float], **options: Any) -> Any:
    """Return a class of schedules of ``rate(step, base, max_iter, …)`` with warmup."""

    @wraps(rate)
    def warmed(step: int, base: float, **given: Any) -> float:
        factor, count, method = (given.pop(f"warmup_{one}") for one in ("factor", "iter", "method"))
        if step >= count:
            return rate(step, base, **given)
        low = float(base * factor)
        done = step / count if method == "linear" else 0.0
        return low + (float(rate(count, base, **given)) - low) * done

    return schedule(name, warmed, WarmupLR, **options, warmup_method="linear")


def _cosine(step: int, base: float, max_iter: int, alpha: float) -> float:
    """Decay as a cosine to ``alpha`` times the rate."""
    return _annealed(step, base, max_iter, base * alpha)


def _annealed(step: int, base: float, max_iter: int, eta_min: float) -> float:
    """Decay as a cosine to ``eta_min``."""
    left = 0.5 * (1 + math.cos(math.pi * min(1.0, step / max_iter)))
    return eta_min + (base - eta_min) * left


def _steps(step: int, base: float, max_iter: int, gamma: float, step_size: int = 1) -> float:
    """Multiply by ``gamma`` every iteration, or every ``step_size`` iterations."""
    return float(base * gamma ** (step // step_size))


def _falls(step: int, base: float, max_iter: int, milestones: Sequence[int], gamma: float) -> float:
    """Multiply by ``gamma`` at each milestone."""
    if list(milestones) != sorted(milestones):
        raise ValueError(f"milestones must increase, got {list(milestones)}")
    return float(base * gamma ** bisect_right(milestones, step))


def _power(
    step: int, base: float, max_iter: int, end_learning_rate: float, power: float, cycle: bool
) -> float:
    """Decay polynomially to ``end_learning_rate``; with ``cycle``, repeat after ``max_iter``."""
    total = max_iter * max(1, math.ceil(step / max_iter)) if cycle else max_iter
    left = 1 - min(step, total) / total
    return float((base - end_learning_rate) * left**power + end_learning_rate)


_ALL = {"max_iter": ..., "warmup_factor": ..., "warmup_iter": ...}
WarmupCosineLR = _schedule("WarmupCosineLR", _cosine, **_ALL, alpha=0.0)
WarmupCosineAnnealingLR = _schedule("WarmupCosineAnnealingLR", _annealed, **_ALL, eta_min=0.0)
WarmupStepLR = _schedule("WarmupStepLR", _steps, **_ALL, step_size=..., gamma=0.1)
WarmupMultiStepLR = _schedule("WarmupMultiStepLR", _falls, **_ALL, milestones=..., gamma=0.1)
WarmupPolynomialLR = _schedule(
    "WarmupPolynomialLR", _power, **_ALL, end_learning_rate=0.0001, power=1.0, cycle=False
)
WarmupExponentialLR = _schedule(
    "WarmupExponentialLR", _steps, max_iter=..., gamma=..., warmup_factor=..., warmup_iter=...
)


def build_lr_scheduler(cfg: Any, optimizer: Any) -> Any:
    """Build the scheduler that a config describes."""
    return instantiate(cfg, optimizer=optimizer)
