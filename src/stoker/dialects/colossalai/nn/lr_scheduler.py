"""Learning rates over a run. All take ``total_steps``, so that one signature fits a config."""

import math
from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import Any

from torch.optim import Optimizer, lr_scheduler
from torch.optim.lr_scheduler import LRScheduler

from stoker.dialects.rates import schedule


def _warmed(shape: Callable[..., float]) -> Callable[..., float]:
    """A straight line up, then the shape over the steps that are left."""

    def factor(
        step: int, base: float, total_steps: int, warmup_steps: int = 0, **options: Any
    ) -> float:
        if not 0 <= warmup_steps < total_steps:
            raise ValueError(
                f"warmup_steps is from 0 to total_steps - 1, got {warmup_steps} of {total_steps}"
            )
        if step < warmup_steps:
            return (step + 1) / (warmup_steps + 1)
        steps = total_steps - warmup_steps
        return shape(min(step - warmup_steps, steps), steps, base, **options)

    return factor


@_warmed
def _cosine(
    step: int, steps: int, base: float, eta_min: float = 0.0, pct_start: float = 0.0
) -> float:
    if not 0 <= pct_start < 1:
        raise ValueError(f"pct_start is a share from 0 to below 1, got {pct_start}")
    begin, low = int(steps * pct_start), eta_min / base
    done = max(0, step - begin) / (steps - begin)
    return low + (1 - low) * (1 + math.cos(math.pi * done)) / 2


@_warmed
def _power(step: int, steps: int, base: float, end_lr: float = 0.0, power: float = 1.0) -> float:
    return end_lr / base + (1 - end_lr / base) * float((1 - step / steps) ** power)


def _falls(
    step: int,
    base: float,
    total_steps: int,
    warmup_steps: int = 0,
    milestones: Sequence[int] = (),
    gamma: float = 0.1,
) -> float:
    if not milestones:
        raise ValueError("milestones are the steps at which the rate falls, got none")
    after: float = gamma ** bisect_right(sorted(milestones), step)
    return after * _warmed(lambda *_: 1.0)(step, base, total_steps, warmup_steps)


_ALL: dict[str, Any] = {"total_steps": ..., "warmup_steps": 0}
_COLD: dict[str, Any] = {"total_steps": ...}
_LAST: dict[str, Any] = {"last_epoch": -1}

CosineAnnealingLR = schedule(
    "CosineAnnealingLR",
    "Fall along half a cosine to ``eta_min``.",
    _cosine,
    **_COLD,
    eta_min=0.0,
    **_LAST,
)
CosineAnnealingWarmupLR = schedule(
    "CosineAnnealingWarmupLR", "The same after a warm-up.", _cosine, **_ALL, eta_min=0.0, **_LAST
)
FlatAnnealingLR = schedule(
    "FlatAnnealingLR",
    "Stay for ``pct_start`` of the run, then the cosine.",
    _cosine,
    **_COLD,
    pct_start=0.72,
    **_LAST,
)
FlatAnnealingWarmupLR = schedule(
    "FlatAnnealingWarmupLR",
    "The same after a warm-up.",
    _cosine,
    **_ALL,
    pct_start=0.72,
    eta_min=0.0,
    **_LAST,
)
PolynomialLR = schedule(
    "PolynomialLR",
    "Fall to ``end_lr`` by a power of what is left.",
    _power,
    **_COLD,
    end_lr=0.0001,
    power=1.0,
    **_LAST,
)
PolynomialWarmupLR = schedule(
    "PolynomialWarmupLR",
    "The same after a warm-up.",
    _power,
    **_ALL,
    end_lr=0.0001,
    power=1.0,
    **_LAST,
)
LinearWarmupLR = schedule(
    "LinearWarmupLR", "Warm up, then a straight line to 0.", _power, **_ALL, **_LAST
)
MultiStepLR = schedule(
    "MultiStepLR",
    "Fall by ``gamma`` at each of the steps.",
    _falls,
    **_COLD,
    milestones=(),
    gamma=0.1,
    **_LAST,
)
MultiStepWarmupLR = schedule(
    "MultiStepWarmupLR",
    "The same after a warm-up.",
    _falls,
    **_ALL,
    milestones=(),
    gamma=0.1,
    **_LAST,
)


def _with_total_steps(kind: type[LRScheduler], **defaults: Any) -> Any:
    """Torch's scheduler of that name; it takes ``total_steps`` as all do, needed or not."""

    def make(optimizer: Optimizer, total_steps: int, **options: Any) -> LRScheduler:
        if kind is lr_scheduler.OneCycleLR:  # its highest rate is that of the optimizer
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
