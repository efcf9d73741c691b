"""Learning-rate schedules with warm-up, as functions of the progress of the run.

Each takes the number of updates of the run and returns a torch scheduler that is stepped once
per update. ``warmup_steps`` takes precedence over ``warmup_ratio``, a fraction of all updates.

    linear      warm up, then decay linearly to 0 after the last update
    cosine      warm up, then decay along half a cosine to ``floor`` times the initial rate
    polynomial  warm up, then decay by ``(1 - progress) ** power`` to ``floor`` times the initial
                rate
    constant    warm up, then stay constant
"""

import math
from collections.abc import Callable

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from stoker.core.calls import explain_calls


def linear(
    optimizer: Optimizer, total_steps: int, *, warmup_steps: int = 0, warmup_ratio: float = 0.0
) -> LambdaLR:
    """Decay the rate linearly, to 0 after the last update."""
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
    """Decay the rate along half a cosine to ``floor`` times its start, ``cycles`` times."""
    if cycles < 1:
        raise ValueError(f"cycles must be at least 1, got {cycles}")

    def shape(progress: float) -> float:
        phase = progress * cycles % 1 if progress < 1 else 1.0
        return floor + (1 - floor) * 0.5 * (1 + math.cos(math.pi * phase))

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
    """Decay the rate by ``(1 - progress) ** power`` to ``floor`` times its start."""

    def shape(progress: float) -> float:
        return floor + (1 - floor) * float((1 - progress) ** power)

    return _with_warmup(optimizer, total_steps, warmup_steps, warmup_ratio, shape)


def constant(
    optimizer: Optimizer, total_steps: int, *, warmup_steps: int = 0, warmup_ratio: float = 0.0
) -> LambdaLR:
    """Keep the rate constant after the warm-up."""
    return _with_warmup(optimizer, total_steps, warmup_steps, warmup_ratio, lambda _: 1.0)


def _with_warmup(
    optimizer: Optimizer,
    total_steps: int,
    warmup_steps: int,
    warmup_ratio: float,
    shape: Callable[[float], float],
) -> LambdaLR:
    if not isinstance(optimizer, Optimizer):
        raise TypeError(f"optimizer is a {type(optimizer).__name__}, expected a torch optimizer")
    if total_steps < 1:
        raise ValueError(f"total_steps must be at least 1, got {total_steps}")
    if not 0 <= warmup_ratio <= 1:
        raise ValueError(f"warmup_ratio must be between 0 and 1, got {warmup_ratio}")
    warmup = warmup_steps or math.ceil(warmup_ratio * total_steps)
    if not 0 <= warmup <= total_steps:
        raise ValueError(
            f"a warm-up of {warmup} steps does not fit into a run of {total_steps} steps"
        )

    def factor(step: int) -> float:
        if step < warmup:
            return (step + 1) / (warmup + 1)
        return shape(min(1.0, (step - warmup) / max(1, total_steps - warmup)))

    return LambdaLR(optimizer, factor)


explain_calls(globals(), ("constant", "cosine", "linear", "polynomial"))
