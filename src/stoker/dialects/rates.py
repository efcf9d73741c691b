"""Learning-rate schedules of older trainers, as formulas with their signatures."""

import math
from bisect import bisect_right
from collections.abc import Callable, Sequence
from functools import wraps
from inspect import Parameter, Signature
from typing import Any

from torch.optim.lr_scheduler import LambdaLR


class FormulaLR(LambdaLR):
    """A scheduler that multiplies the initial rates by a formula of the step.

    A formula has no state, so a resumed run has exactly the rates of an uninterrupted one. The
    options are attributes.
    """

    formula: Callable[..., float]
    signature: Signature

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        bound = self.signature.bind(*args, **kwargs)
        bound.apply_defaults()
        self._options = dict(bound.arguments)
        optimizer, last = self._options.pop("optimizer"), self._options.pop("last_epoch", -1)
        vars(self).update(self._options)
        bases = [float(group.get("initial_lr", group["lr"])) for group in optimizer.param_groups]
        super().__init__(optimizer, [self._bind(base) for base in bases], last)

    def state_dict(self) -> dict[str, Any]:
        """Return the state without the options, which belong to the script."""
        options = {"_options", *self._options}
        return {name: v for name, v in super().state_dict().items() if name not in options}

    def _bind(self, base: float) -> Callable[[int], float]:
        formula, options = type(self).formula, self._options
        return lambda step: formula(step, base, **options)


def schedule(
    name: str, factor: Callable[..., float], base: type[FormulaLR] = FormulaLR, **defaults: Any
) -> Any:
    """Return a class of schedulers that multiply the initial rates by a factor.

    Args:
        name: The name of the class.
        factor: Computes the factor from ``(step, base, …)``: the step, the initial rate, and the
            options. Its docstring becomes that of the class.
        base: The base class.
        defaults: The options in order; ``...`` marks a required one.
    """
    kind = Parameter.POSITIONAL_OR_KEYWORD
    options = [
        Parameter(option, kind, default=Parameter.empty if value is ... else value)
        for option, value in defaults.items()
    ]
    taken = [Parameter("optimizer", kind), *options]

    def build(self: FormulaLR, *args: Any, **kwargs: Any) -> None:
        base.__init__(self, *args, **kwargs)

    build.__dict__["__signature__"] = Signature([Parameter("self", kind), *taken])
    return type(
        name,
        (base,),
        {
            "__init__": build,
            "__doc__": factor.__doc__,
            "__module__": factor.__module__,
            "formula": staticmethod(factor),
            "signature": Signature(taken),
        },
    )


def warmed(shape: Callable[..., float], more: int = 0) -> Callable[..., float]:
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


def cosine(
    step: int, steps: int, base: float, _: int, eta_min: float = 0.0, pct_start: float = 0.0
) -> float:
    """Hold the rate for ``pct_start`` of the steps, then decay as a cosine to ``eta_min``."""
    if not 0 <= pct_start < 1:
        raise ValueError(f"pct_start must be at least 0 and less than 1, got {pct_start}")
    begin, low = int(steps * pct_start), eta_min / base
    done = max(0, step - begin) / (steps - begin)
    return low + (1 - low) * (1 + math.cos(math.pi * done)) / 2


def power(
    step: int, steps: int, base: float, _: int, end_lr: float = 0.0, power: float = 1.0
) -> float:
    """Decay polynomially to ``end_lr``."""
    return end_lr / base + (1 - end_lr / base) * float((1 - step / steps) ** power)


def falls(
    step: int, steps: int, base: float, warmup: int, milestones: Sequence[int], gamma: float
) -> float:
    """Multiply the rate by ``gamma`` at each of the ``milestones``, counted from step 0."""
    if not milestones:
        raise ValueError("milestones must list the steps at which the rate changes, got none")
    return float(gamma ** bisect_right(sorted(milestones), step + warmup))
