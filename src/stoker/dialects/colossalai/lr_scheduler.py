"""Learning-rate schedulers. All take ``total_steps``, so that they can be swapped in a config."""

import math
from bisect import bisect_right
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

from torch.optim import Optimizer, lr_scheduler

from stoker.dialects.rates import schedule


def _warmed(shape: Callable[..., float], more: int = 0) -> Callable[..., float]:
    """Add a linear warmup before a shape over the remaining steps.

    The rate is reached in the last step of the warmup, or ``more`` steps later.
    """

    @wraps(shape)
    def factor(
        step: int, base: float, total_steps: int, warmup_steps: int = 0, **own: Any
    ) -> float:
        if not 0 <= warmup_steps < total_steps:
            raise ValueError(
                "warmup_steps must be from 0 to total_steps - 1, "
                f"got {warmup_steps} of {total_steps}"
            )
        if step < warmup_steps:
            return (step + 1) / (warmup_steps + more)
        steps = total_steps - warmup_steps
        return shape(min(step - warmup_steps, steps), steps, base, warmup_steps, **own)

    return factor


def _cosine(
    step: int, steps: int, base: float, _: int, eta_min: float = 0.0, pct_start: float = 0.0
) -> float:
    """Hold the rate for ``pct_start`` of the steps, then decay as a cosine to ``eta_min``."""
    if not 0 <= pct_start < 1:
        raise ValueError(f"pct_start must be at least 0 and less than 1, got {pct_start}")
    begin, low = int(steps * pct_start), eta_min / base
    done = max(0, step - begin) / (steps - begin)
    return low + (1 - low) * (1 + math.cos(math.pi * done)) / 2


def _power(
    step: int, steps: int, base: float, _: int, end_lr: float = 0.0, power: float = 1.0
) -> float:
    """Decay polynomially to ``end_lr``."""
    return end_lr / base + (1 - end_lr / base) * float((1 - step / steps) ** power)


def _falls(
    step: int, steps: int, base: float, warmup: int, milestones: Sequence[int], gamma: float
) -> float:
    """Multiply the rate by ``gamma`` at each of the ``milestones``, counted from step 0."""
    if not milestones:
        raise ValueError("milestones must list the steps at which the rate changes, got none")
    return float(gamma ** bisect_right(sorted(milestones), step + warmup))


def _lr(name: str, shape: Callable[..., float], more: int = 0, **options: Any) -> Any:
    return schedule(name, _warmed(shape, more), total_steps=..., **options, last_epoch=-1)


class CosineAnnealingLR(_lr("CosineAnnealingLR", _cosine, eta_min=0.0)):  # type: ignore[misc]
    """Decay as a cosine to ``eta_min``; ``T_max`` is torch's name for ``total_steps``."""

    def __init__(
        self,
        optimizer: Optimizer,
        total_steps: int | None = None,
        eta_min: float = 0.0,
        last_epoch: int = -1,
        *,
        T_max: int | None = None,  # noqa: N803
    ) -> None:
        if (total_steps is None) is (T_max is None):
            raise TypeError("CosineAnnealingLR needs total_steps, or T_max, which is the same")
        super().__init__(
            optimizer, T_max if total_steps is None else total_steps, eta_min, last_epoch
        )


CosineAnnealingWarmupLR = _lr("CosineAnnealingWarmupLR", _cosine, warmup_steps=0, eta_min=0.0)
FlatAnnealingLR = _lr("FlatAnnealingLR", _cosine, pct_start=0.72)
FlatAnnealingWarmupLR = _lr(
    "FlatAnnealingWarmupLR", _cosine, warmup_steps=0, pct_start=0.72, eta_min=0.0
)
LinearWarmupLR = _lr("LinearWarmupLR", _power, more=1, warmup_steps=0)
PolynomialLR = _lr("PolynomialLR", _power, end_lr=0.0001, power=1.0)
PolynomialWarmupLR = _lr("PolynomialWarmupLR", _power, warmup_steps=0, end_lr=0.0001, power=1.0)
MultiStepLR = _lr("MultiStepLR", _falls, milestones=(), gamma=0.1)
MultiStepWarmupLR = _lr("MultiStepWarmupLR", _falls, warmup_steps=0, milestones=(), gamma=0.1)


class OneCycleLR(lr_scheduler.OneCycleLR):
    """torch's scheduler, whose maximum is the rate of the optimizer."""

    def __init__(self, optimizer: Optimizer, total_steps: int, *args: Any, **options: Any) -> None:
        names = (
            "pct_start",
            "anneal_strategy",
            "cycle_momentum",
            "base_momentum",
            "max_momentum",
            "div_factor",
            "final_div_factor",
            "last_epoch",
        )
        options |= dict(zip(names, args, strict=False))
        rates = [group["lr"] for group in optimizer.param_groups]
        super().__init__(optimizer, rates, total_steps, **options)


class LambdaLR(lr_scheduler.LambdaLR):
    """torch's scheduler; ``total_steps`` has no effect on its rates."""

    def __init__(
        self, optimizer: Optimizer, total_steps: int, lr_lambda: Any, last_epoch: int = -1
    ) -> None:
        super().__init__(optimizer, lr_lambda, last_epoch)


class MultiplicativeLR(lr_scheduler.MultiplicativeLR):
    """torch's scheduler; ``total_steps`` has no effect on its rates."""

    def __init__(
        self, optimizer: Optimizer, total_steps: int, lr_lambda: Any, last_epoch: int = -1
    ) -> None:
        super().__init__(optimizer, lr_lambda, last_epoch)


class StepLR(lr_scheduler.StepLR):
    """torch's scheduler; ``total_steps`` has no effect on its rates."""

    def __init__(
        self,
        optimizer: Optimizer,
        total_steps: int,
        step_size: int = 1,
        gamma: float = 0.1,
        last_epoch: int = -1,
    ) -> None:
        super().__init__(optimizer, step_size, gamma, last_epoch)


class ExponentialLR(lr_scheduler.ExponentialLR):
    """torch's scheduler; ``total_steps`` has no effect on its rates."""

    def __init__(
        self, optimizer: Optimizer, total_steps: int, gamma: float = 1.0, last_epoch: int = -1
    ) -> None:
        super().__init__(optimizer, gamma, last_epoch)
