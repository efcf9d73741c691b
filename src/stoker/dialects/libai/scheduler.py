"""Learning-rate schedules with warmup, which change once per iteration.

The rate rises from ``warmup_factor`` times itself to where the schedule is after ``warmup_iter``
iterations ("linear"), or waits below ("constant"); from there on it is the schedule's.
"""

import logging
import math
from bisect import bisect_right
from collections.abc import Callable, Sequence
from inspect import Parameter, Signature
from typing import Any

from torch.optim.lr_scheduler import LRScheduler

from stoker.dialects.libai.config import instantiate

_log = logging.getLogger("libai.scheduler")


class FormulaLR(LRScheduler):
    """A schedule that computes each rate from the iteration and the initial rate alone.

    A formula has no state, so a resumed run has exactly the rates of an uninterrupted one.
    """

    def __init__(self, optimizer: Any, rate: Callable[[int, float], float]) -> None:
        self._rate = rate
        super().__init__(optimizer)

    def get_lr(self) -> list[float]:  # type: ignore[override]
        """Return the rate of each parameter group."""
        return [self._rate(self.last_epoch, float(base)) for base in self.base_lrs]

    def state_dict(self) -> dict[str, Any]:
        """Return the iteration and the initial rates."""
        return {key: one for key, one in super().state_dict().items() if key != "_rate"}


def _schedule(name: str, rate: Callable[..., float], *order: str, **own: Any) -> Any:
    """Return a function that builds a schedule of ``rate(step, base, max_iter, …)`` with warmup.

    Its options are those of all schedules and ``own`` ones; ``...`` marks a required one.
    """
    common = {"optimizer": ..., "max_iter": ..., "warmup_factor": ..., "warmup_iter": ...}
    options = {**common, **own, "warmup_method": "linear"}
    kind, empty = Parameter.POSITIONAL_OR_KEYWORD, Parameter.empty
    defaults = {option: options[option] for option in order or options}
    signature = Signature(
        [Parameter(n, kind, default=empty if one is ... else one) for n, one in defaults.items()]
    )

    def make(*args: Any, **kwargs: Any) -> FormulaLR:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        given = dict(bound.arguments)
        optimizer, last = given.pop("optimizer"), given["max_iter"]
        factor, count, method = (given.pop(f"warmup_{one}") for one in ("factor", "iter", "method"))
        if method not in ("linear", "constant"):
            raise ValueError(f"warmup_method must be 'linear' or 'constant', got {method!r}")
        if count > last:
            _log.warning(f"the warmup of {count} iterations is longer than the run: {last}")

        def warmed(step: int, base: float) -> float:
            if step >= count:
                return float(rate(step, base, **given))
            low = float(base * factor)
            done = step / count if method == "linear" else 0.0
            return low + (float(rate(count, base, **given)) - low) * done

        return FormulaLR(optimizer, warmed)

    make.__name__ = make.__qualname__ = name
    make.__doc__, make.__dict__["__signature__"] = rate.__doc__, signature
    return make


def _cosine(step: int, base: float, max_iter: int, alpha: float) -> float:
    """Decay as a cosine to ``alpha`` times the rate."""
    return _annealed(step, base, max_iter, base * alpha)


def _annealed(step: int, base: float, max_iter: int, eta_min: float) -> float:
    """Decay as a cosine to ``eta_min``."""
    left = 0.5 * (1 + math.cos(math.pi * min(1.0, step / max_iter)))
    return eta_min + (base - eta_min) * left


def _steps(step: int, base: float, max_iter: int, step_size: int, gamma: float) -> float:
    """Multiply by ``gamma`` every ``step_size`` iterations."""
    return float(base * gamma ** (step // step_size))


def _falls(step: int, base: float, max_iter: int, milestones: Sequence[int], gamma: float) -> float:
    """Multiply by ``gamma`` at each milestone."""
    if list(milestones) != sorted(milestones):
        raise ValueError(f"milestones must increase, got {list(milestones)}")
    return float(base * gamma ** bisect_right(milestones, step))


def _exponential(step: int, base: float, max_iter: int, gamma: float) -> float:
    """Multiply by ``gamma`` every iteration."""
    return float(base * gamma**step)


def _power(
    step: int, base: float, max_iter: int, end_learning_rate: float, power: float, cycle: bool
) -> float:
    """Decay polynomially to ``end_learning_rate``; with ``cycle``, repeat after ``max_iter``."""
    total = max_iter * max(1, math.ceil(step / max_iter)) if cycle else max_iter
    left = 1 - min(step, total) / total
    return float((base - end_learning_rate) * left**power + end_learning_rate)


WarmupCosineLR = _schedule("WarmupCosineLR", _cosine, alpha=0.0)
WarmupCosineAnnealingLR = _schedule("WarmupCosineAnnealingLR", _annealed, eta_min=0.0)
WarmupStepLR = _schedule("WarmupStepLR", _steps, step_size=..., gamma=0.1)
WarmupMultiStepLR = _schedule("WarmupMultiStepLR", _falls, milestones=..., gamma=0.1)
WarmupPolynomialLR = _schedule(
    "WarmupPolynomialLR", _power, end_learning_rate=0.0001, power=1.0, cycle=False
)
_ORDER = ("optimizer", "max_iter", "gamma", "warmup_factor", "warmup_iter", "warmup_method")
WarmupExponentialLR = _schedule("WarmupExponentialLR", _exponential, *_ORDER, gamma=...)


def build_lr_scheduler(cfg: Any, optimizer: Any) -> Any:
    """Build the scheduler that a config describes."""
    return instantiate(cfg, optimizer=optimizer)
