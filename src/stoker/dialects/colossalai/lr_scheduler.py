"""Learning-rate schedulers. All take ``total_steps``, so that they can be swapped in a config."""

import math
from bisect import bisect_right
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

from torch.optim import Optimizer, lr_scheduler
from torch.optim.lr_scheduler import LRScheduler

from stoker.dialects.rates import schedule


def _warmed(shape: Callable[..., float]) -> Callable[..., float]:
    """Add a linear warmup before a shape over the remaining steps."""

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
            return (step + 1) / (warmup_steps + 1)
        steps = total_steps - warmup_steps
        return shape(min(step - warmup_steps, steps), steps, base, warmup_steps, **own)

    return factor


@_warmed
def _cosine(
    step: int, steps: int, base: float, _: int, eta_min: float = 0.0, pct_start: float = 0.0
) -> float:
    """Hold the rate for ``pct_start`` of the steps, then decay as a cosine to ``eta_min``."""
    if not 0 <= pct_start < 1:
        raise ValueError(f"pct_start must be at least 0 and less than 1, got {pct_start}")
    begin, low = int(steps * pct_start), eta_min / base
    done = max(0, step - begin) / (steps - begin)
    return low + (1 - low) * (1 + math.cos(math.pi * done)) / 2


@_warmed
def _power(
    step: int, steps: int, base: float, _: int, end_lr: float = 0.0, power: float = 1.0
) -> float:
    """Decay polynomially to ``end_lr``."""
    return end_lr / base + (1 - end_lr / base) * float((1 - step / steps) ** power)


@_warmed
def _falls(
    step: int, steps: int, base: float, warmup: int, milestones: Sequence[int], gamma: float
) -> float:
    """Multiply the rate by ``gamma`` at each of the ``milestones``, counted from step 0."""
    if not milestones:
        raise ValueError("milestones must list the steps at which the rate changes, got none")
    return float(gamma ** bisect_right(sorted(milestones), step + warmup))


def _lr(name: str, factor: Callable[..., float], **options: Any) -> Any:
    return schedule(name, factor, total_steps=..., **options, last_epoch=-1)


CosineAnnealingLR = _lr("CosineAnnealingLR", _cosine, eta_min=0.0)
CosineAnnealingWarmupLR = _lr("CosineAnnealingWarmupLR", _cosine, warmup_steps=0, eta_min=0.0)
FlatAnnealingLR = _lr("FlatAnnealingLR", _cosine, pct_start=0.72)
FlatAnnealingWarmupLR = _lr(
    "FlatAnnealingWarmupLR", _cosine, warmup_steps=0, pct_start=0.72, eta_min=0.0
)
LinearWarmupLR = _lr("LinearWarmupLR", _power, warmup_steps=0)
PolynomialLR = _lr("PolynomialLR", _power, end_lr=0.0001, power=1.0)
PolynomialWarmupLR = _lr("PolynomialWarmupLR", _power, warmup_steps=0, end_lr=0.0001, power=1.0)
MultiStepLR = _lr("MultiStepLR", _falls, milestones=(), gamma=0.1)
MultiStepWarmupLR = _lr("MultiStepWarmupLR", _falls, warmup_steps=0, milestones=(), gamma=0.1)


def _with_total_steps(kind: type[LRScheduler], **defaults: Any) -> Any:
    """Return a function that builds torch's scheduler; it accepts ``total_steps`` like all."""

    def make(optimizer: Optimizer, total_steps: int, **options: Any) -> LRScheduler:
        if kind is lr_scheduler.OneCycleLR:  # its maximum is the rate of the optimizer
            options["total_steps"] = total_steps
            options["max_lr"] = [group["lr"] for group in optimizer.param_groups]
        scheduler: LRScheduler = kind(optimizer, **{**defaults, **options})
        return scheduler

    return make


OneCycleLR = _with_total_steps(lr_scheduler.OneCycleLR)
LambdaLR = _with_total_steps(lr_scheduler.LambdaLR)
MultiplicativeLR = _with_total_steps(lr_scheduler.MultiplicativeLR)
StepLR = _with_total_steps(lr_scheduler.StepLR, step_size=1)
ExponentialLR = _with_total_steps(lr_scheduler.ExponentialLR, gamma=1.0)
