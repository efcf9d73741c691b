"""Learning-rate schedules with warmup, which change once per iteration.

The rate rises from ``warmup_factor`` times itself to where the schedule is after ``warmup_iter``
iterations ("linear"), or waits below ("constant"); from there on it is the schedule's.
"""

import logging
import math
from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import Any

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from stoker.dialects.libai.config import instantiate

_log = logging.getLogger("libai.scheduler")


class FormulaLR(LRScheduler):
    """A schedule that computes each rate from the iteration and the initial rate alone.

    A formula has no state, so a resumed run has exactly the rates of an uninterrupted one.

    Args:
        optimizer: The optimizer.
        rate: Returns the rate for an iteration and an initial rate.
    """

    def __init__(self, optimizer: Optimizer, rate: Callable[[int, float], float]) -> None:
        self._rate = rate
        super().__init__(optimizer)

    def get_lr(self) -> list[float]:  # type: ignore[override]
        """Return the rate of each parameter group."""
        return [self._rate(self.last_epoch, float(base)) for base in self.base_lrs]

    def state_dict(self) -> dict[str, Any]:
        """Return the iteration and the initial rates."""
        return {key: one for key, one in super().state_dict().items() if key != "_rate"}


def _warming(
    optimizer: Optimizer,
    rate: Callable[[int, float], float],
    max_iter: int,
    warmup_factor: float,
    warmup_iter: int,
    warmup_method: str,
) -> FormulaLR:
    """Return the schedule ``rate`` with a warmup."""
    if warmup_method not in ("linear", "constant"):
        raise ValueError(f"warmup_method must be 'linear' or 'constant', got {warmup_method!r}")
    if warmup_iter > max_iter:
        _log.warning(f"the warmup of {warmup_iter} iterations is longer than the run: {max_iter}")

    def warmed(step: int, base: float) -> float:
        if step >= warmup_iter:
            return rate(step, base)
        low = base * warmup_factor
        if warmup_method == "constant":
            return low
        return low + (rate(warmup_iter, base) - low) * step / warmup_iter

    return FormulaLR(optimizer, warmed)


def WarmupCosineLR(  # noqa: N802
    optimizer: Optimizer,
    max_iter: int,
    warmup_factor: float,
    warmup_iter: int,
    alpha: float = 0.0,
    warmup_method: str = "linear",
) -> FormulaLR:
    """Decay as a cosine to ``alpha`` times the rate."""

    def rate(step: int, base: float) -> float:
        return base * (alpha + (1 - alpha) * _cosine(step, max_iter))

    return _warming(optimizer, rate, max_iter, warmup_factor, warmup_iter, warmup_method)


def WarmupCosineAnnealingLR(  # noqa: N802
    optimizer: Optimizer,
    max_iter: int,
    warmup_factor: float,
    warmup_iter: int,
    eta_min: float = 0.0,
    warmup_method: str = "linear",
) -> FormulaLR:
    """Decay as a cosine to ``eta_min``."""

    def rate(step: int, base: float) -> float:
        return eta_min + (base - eta_min) * _cosine(step, max_iter)

    return _warming(optimizer, rate, max_iter, warmup_factor, warmup_iter, warmup_method)


def _cosine(step: int, max_iter: int) -> float:
    return 0.5 * (1 + math.cos(math.pi * min(1.0, step / max_iter)))


def WarmupStepLR(  # noqa: N802
    optimizer: Optimizer,
    max_iter: int,
    warmup_factor: float,
    warmup_iter: int,
    step_size: int,
    gamma: float = 0.1,
    warmup_method: str = "linear",
) -> FormulaLR:
    """Multiply by ``gamma`` every ``step_size`` iterations."""

    def rate(step: int, base: float) -> float:
        return float(base * gamma ** (step // step_size))

    return _warming(optimizer, rate, max_iter, warmup_factor, warmup_iter, warmup_method)


def WarmupMultiStepLR(  # noqa: N802
    optimizer: Optimizer,
    max_iter: int,
    warmup_factor: float,
    warmup_iter: int,
    milestones: Sequence[int],
    gamma: float = 0.1,
    warmup_method: str = "linear",
) -> FormulaLR:
    """Multiply by ``gamma`` at each milestone."""
    if list(milestones) != sorted(milestones):
        raise ValueError(f"milestones must increase, got {list(milestones)}")

    def rate(step: int, base: float) -> float:
        return float(base * gamma ** bisect_right(milestones, step))

    return _warming(optimizer, rate, max_iter, warmup_factor, warmup_iter, warmup_method)


def WarmupExponentialLR(  # noqa: N802
    optimizer: Optimizer,
    max_iter: int,
    gamma: float,
    warmup_factor: float,
    warmup_iter: int,
    warmup_method: str = "linear",
) -> FormulaLR:
    """Multiply by ``gamma`` every iteration."""

    def rate(step: int, base: float) -> float:
        return float(base * gamma**step)

    return _warming(optimizer, rate, max_iter, warmup_factor, warmup_iter, warmup_method)


def WarmupPolynomialLR(  # noqa: N802
    optimizer: Optimizer,
    max_iter: int,
    warmup_factor: float,
    warmup_iter: int,
    end_learning_rate: float = 0.0001,
    power: float = 1.0,
    cycle: bool = False,
    warmup_method: str = "linear",
) -> FormulaLR:
    """Decay polynomially to ``end_learning_rate``; with ``cycle``, repeat after ``max_iter``."""

    def rate(step: int, base: float) -> float:
        total = max_iter * max(1, math.ceil(step / max_iter)) if cycle else max_iter
        left = 1 - min(step, total) / total
        return float((base - end_learning_rate) * left**power + end_learning_rate)

    return _warming(optimizer, rate, max_iter, warmup_factor, warmup_iter, warmup_method)


def build_lr_scheduler(cfg: Any, optimizer: Optimizer) -> Any:
    """Build the scheduler that a config describes."""
    return instantiate(cfg, optimizer=optimizer)
