"""Learning-rate schedules with warm-up, as functions of how much of the run is done.

Each takes the number of updates of the run and returns a torch scheduler that is stepped once
per update. ``warmup_steps`` wins over ``warmup_ratio``, a share of all updates.

    linear      warm up, then fall in a straight line to 0 after the last update
    cosine      warm up, then fall along half a cosine to ``floor`` times the rate
    polynomial  warm up, then fall by ``(1 - progress) ** power`` to ``floor`` times the rate
    constant    warm up, then stay
"""

import math
from collections.abc import Callable

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR


def linear(
    optimizer: Optimizer, total_steps: int, *, warmup_steps: int = 0, warmup_ratio: float = 0.0
) -> LambdaLR:
    """The rate falls in a straight line; it is 0 after the last update."""
    return polynomial(
        optimizer, total_steps, warmup_steps=warmup_steps, warmup_ratio=warmup_ratio, power=1.0
    )


def cosine(
    optimizer: Optimizer,
    total_steps: int,
    *,
    warmup_steps: int = 0,
    warmup_ratio: float = 0.0,
    floor: float = 0.0,
    cycles: int = 1,
) -> LambdaLR:
    """The rate falls along half a cosine to ``floor`` times its start, ``cycles`` times over."""
    if cycles < 1:
        raise ValueError(f"cycles counts the falls of the rate, at least 1, got {cycles}")

    def shape(progress: float) -> float:
        fallen = progress * cycles % 1 if progress < 1 else 1.0
        return floor + (1 - floor) * 0.5 * (1 + math.cos(math.pi * fallen))

    return _with_warmup(optimizer, total_steps, warmup_steps, warmup_ratio, shape)


def polynomial(
    optimizer: Optimizer,
    total_steps: int,
    *,
    warmup_steps: int = 0,
    warmup_ratio: float = 0.0,
    power: float = 1.0,
    floor: float = 0.0,
) -> LambdaLR:
    """The rate falls by ``(1 - progress) ** power`` to ``floor`` times its start."""

    def shape(progress: float) -> float:
        return floor + (1 - floor) * float((1 - progress) ** power)

    return _with_warmup(optimizer, total_steps, warmup_steps, warmup_ratio, shape)


def constant(
    optimizer: Optimizer, total_steps: int, *, warmup_steps: int = 0, warmup_ratio: float = 0.0
) -> LambdaLR:
    """The rate stays after the warm-up."""
    return _with_warmup(optimizer, total_steps, warmup_steps, warmup_ratio, lambda _: 1.0)


def _with_warmup(
    optimizer: Optimizer,
    total_steps: int,
    warmup_steps: int,
    warmup_ratio: float,
    shape: Callable[[float], float],
) -> LambdaLR:
    if total_steps < 1:
        raise ValueError(f"total_steps counts the updates of the run, got {total_steps}")
    if not 0 <= warmup_ratio <= 1:
        raise ValueError(f"warmup_ratio is a share of all updates, 0 to 1, got {warmup_ratio}")
    warmup = warmup_steps or math.ceil(warmup_ratio * total_steps)
    if not 0 <= warmup <= total_steps:
        raise ValueError(f"a warm-up of {warmup} steps does not fit a run of {total_steps}")

    def factor(step: int) -> float:
        if step < warmup:
            return (step + 1) / (warmup + 1)
        return shape(min(1.0, (step - warmup) / max(1, total_steps - warmup)))

    return LambdaLR(optimizer, factor)
