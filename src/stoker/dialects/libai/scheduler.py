"""Learning-rate schedules with warmup, which change once per iteration.

The rate rises from ``warmup_factor`` times itself to where the schedule is after ``warmup_iter``
iterations ("linear"), or waits below ("constant"); from there on it is the schedule's.
"""

import math
from bisect import bisect_right
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

from stoker.dialects.rates import schedule


def _warming(name: str, shape: Callable[..., float], *order: str, **own: Any) -> Any:
    """Return a schedule of ``shape(step, base, max_iter, …)`` with its arguments in order."""

    @wraps(shape)
    def factor(
        step: int,
        base: float,
        *,
        max_iter: int,
        warmup_factor: float,
        warmup_iter: int,
        warmup_method: str,
        **options: Any,
    ) -> float:
        if warmup_method not in ("linear", "constant"):
            raise ValueError(f"warmup_method must be 'linear' or 'constant', got {warmup_method!r}")
        if not 0 <= warmup_iter <= max_iter:
            raise ValueError(
                f"a warmup of {warmup_iter} iterations is too long for a run of {max_iter}"
            )
        if step >= warmup_iter:
            return shape(step, base, max_iter, **options)
        done = step / warmup_iter if warmup_method == "linear" else 0.0
        then = shape(warmup_iter, base, max_iter, **options)
        return warmup_factor + (then - warmup_factor) * done

    common = {"max_iter": ..., "warmup_factor": ..., "warmup_iter": ...}
    options = {**common, **own, "warmup_method": "linear"}
    return schedule(name, factor, **{one: options[one] for one in order or options})


def _cosine(
    step: int, base: float, max_iter: int, alpha: float | None = None, eta_min: float = 0.0
) -> float:
    """Decay as a cosine to ``alpha`` times the rate, or to ``eta_min``."""
    low = eta_min / base if alpha is None else alpha
    return low + (1 - low) * 0.5 * (1 + math.cos(math.pi * min(1.0, step / max_iter)))


def _steps(step: int, base: float, max_iter: int, step_size: int, gamma: float) -> float:
    """Multiply by ``gamma`` every ``step_size`` iterations."""
    return float(gamma ** (step // step_size))


def _falls(step: int, base: float, max_iter: int, milestones: Sequence[int], gamma: float) -> float:
    """Multiply by ``gamma`` at each milestone."""
    if list(milestones) != sorted(milestones):
        raise ValueError(f"milestones must increase, got {list(milestones)}")
    return float(gamma ** bisect_right(milestones, step))


def _power(
    step: int, base: float, max_iter: int, end_learning_rate: float, power: float, cycle: bool
) -> float:
    """Decay polynomially; with ``cycle``, repeat after ``max_iter``."""
    low = end_learning_rate / base
    total = max_iter * max(1, math.ceil(step / max_iter)) if cycle else max_iter
    return low + (1 - low) * float((1 - min(1.0, step / total)) ** power)


def _exponential(step: int, base: float, max_iter: int, gamma: float) -> float:
    """Multiply by ``gamma`` every iteration."""
    return float(gamma**step)


WarmupCosineLR = _warming("WarmupCosineLR", _cosine, alpha=0.0)
WarmupCosineAnnealingLR = _warming("WarmupCosineAnnealingLR", _cosine, eta_min=0.0)
WarmupStepLR = _warming("WarmupStepLR", _steps, step_size=..., gamma=0.1)
WarmupMultiStepLR = _warming("WarmupMultiStepLR", _falls, milestones=..., gamma=0.1)
WarmupPolynomialLR = _warming(
    "WarmupPolynomialLR", _power, end_learning_rate=0.0001, power=1.0, cycle=False
)
_ORDER = ("max_iter", "gamma", "warmup_factor", "warmup_iter", "warmup_method")
WarmupExponentialLR = _warming("WarmupExponentialLR", _exponential, *_ORDER, gamma=...)
