"""Learning-rate schedules that warm up. Each moves once per iteration.

The rate rises from ``warmup_factor`` times itself to where the schedule is after ``warmup_iter``
iterations ("linear"), or waits below ("constant"); from there on it is the schedule's.
"""

import math
from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import Literal, TypeAlias

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

Method: TypeAlias = Literal["linear", "constant"]
_Shape: TypeAlias = Callable[[int, float], float]
"""The factor on the rate at an iteration, for a group of that first rate."""


def _warming(
    optimizer: Optimizer, max_iter: int, factor: float, warmup: int, method: str, shape: _Shape
) -> LambdaLR:
    if method not in ("linear", "constant"):
        raise ValueError(f"warmup_method is 'linear' or 'constant', got {method!r}")
    if not 0 <= warmup <= max_iter:
        raise ValueError(f"a warm-up of {warmup} iterations does not fit a run of {max_iter}")

    def at(base: float) -> Callable[[int], float]:
        def rate(step: int) -> float:
            if step >= warmup:
                return shape(step, base)
            done = step / warmup if method == "linear" else 0.0
            return factor + (shape(warmup, base) - factor) * done

        return rate

    return LambdaLR(optimizer, [at(float(group["lr"])) for group in optimizer.param_groups])


def WarmupCosineLR(  # noqa: N802
    optimizer: Optimizer,
    max_iter: int,
    warmup_factor: float,
    warmup_iter: int,
    alpha: float = 0.0,
    warmup_method: Method = "linear",
) -> LambdaLR:
    """Falls along half a cosine to ``alpha`` times the rate."""

    def shape(step: int, base: float) -> float:
        return alpha + (1 - alpha) * 0.5 * (1 + math.cos(math.pi * min(1.0, step / max_iter)))

    return _warming(optimizer, max_iter, warmup_factor, warmup_iter, warmup_method, shape)


def WarmupCosineAnnealingLR(  # noqa: N802
    optimizer: Optimizer,
    max_iter: int,
    warmup_factor: float,
    warmup_iter: int,
    eta_min: float = 0.0,
    warmup_method: Method = "linear",
) -> LambdaLR:
    """Falls along half a cosine to the rate ``eta_min``."""

    def shape(step: int, base: float) -> float:
        low = eta_min / base
        return low + (1 - low) * 0.5 * (1 + math.cos(math.pi * min(1.0, step / max_iter)))

    return _warming(optimizer, max_iter, warmup_factor, warmup_iter, warmup_method, shape)


def WarmupStepLR(  # noqa: N802
    optimizer: Optimizer,
    max_iter: int,
    warmup_factor: float,
    warmup_iter: int,
    step_size: int,
    gamma: float = 0.1,
    warmup_method: Method = "linear",
) -> LambdaLR:
    """Times ``gamma`` every ``step_size`` iterations."""

    def shape(step: int, base: float) -> float:
        return float(gamma ** (step // step_size))

    return _warming(optimizer, max_iter, warmup_factor, warmup_iter, warmup_method, shape)


def WarmupMultiStepLR(  # noqa: N802
    optimizer: Optimizer,
    max_iter: int,
    warmup_factor: float,
    warmup_iter: int,
    milestones: Sequence[int],
    gamma: float = 0.1,
    warmup_method: Method = "linear",
) -> LambdaLR:
    """Times ``gamma`` at each of the milestones."""
    if list(milestones) != sorted(milestones):
        raise ValueError(f"milestones rise, got {list(milestones)}")

    def shape(step: int, base: float) -> float:
        return float(gamma ** bisect_right(milestones, step))

    return _warming(optimizer, max_iter, warmup_factor, warmup_iter, warmup_method, shape)


def WarmupExponentialLR(  # noqa: N802
    optimizer: Optimizer,
    max_iter: int,
    gamma: float,
    warmup_factor: float,
    warmup_iter: int,
    warmup_method: Method = "linear",
) -> LambdaLR:
    """Times ``gamma`` every iteration."""

    def shape(step: int, base: float) -> float:
        return float(gamma**step)

    return _warming(optimizer, max_iter, warmup_factor, warmup_iter, warmup_method, shape)


def WarmupPolynomialLR(  # noqa: N802
    optimizer: Optimizer,
    max_iter: int,
    warmup_factor: float,
    warmup_iter: int,
    end_learning_rate: float = 0.0001,
    power: float = 1.0,
    cycle: bool = False,
    warmup_method: Method = "linear",
) -> LambdaLR:
    """Falls by ``(1 - progress) ** power`` to ``end_learning_rate``; with ``cycle`` over again."""

    def shape(step: int, base: float) -> float:
        low = end_learning_rate / base
        whole = max_iter * max(1, math.ceil(step / max_iter)) if cycle else max_iter
        return low + (1 - low) * float((1 - min(1.0, step / whole)) ** power)

    return _warming(optimizer, max_iter, warmup_factor, warmup_iter, warmup_method, shape)
