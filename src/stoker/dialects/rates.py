"""Learning-rate schedules of older trainers: formulas of the step, under their signatures."""

from collections.abc import Callable
from inspect import Parameter, Signature
from typing import Any

from torch.optim.lr_scheduler import LambdaLR


def schedule(name: str, factor: Callable[..., float], **defaults: Any) -> Any:
    """A function that makes a scheduler: of an optimizer's first rates, times a factor.

    A formula has no state, so that a run which goes on has the very rates it would have had.

    Args:
        name: what it is assigned to.
        factor: gives it for ``(step, base, …)``: the step, the first rate, the options; its words
            are those of the schedule.
        defaults: the options in order; ``...`` stands for one that must be given.
    """
    kind = Parameter.POSITIONAL_OR_KEYWORD
    options = [
        Parameter(option, kind, default=Parameter.empty if value is ... else value)
        for option, value in defaults.items()
    ]
    signature = Signature([Parameter("optimizer", kind), *options])

    def make(*args: Any, **kwargs: Any) -> LambdaLR:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        given = bound.arguments
        optimizer, last = given.pop("optimizer"), given.pop("last_epoch", -1)
        bases = [float(group.get("initial_lr", group["lr"])) for group in optimizer.param_groups]
        return LambdaLR(optimizer, [_of(factor, base, given) for base in bases], last)

    make.__name__ = make.__qualname__ = name
    make.__module__, make.__doc__ = factor.__module__, factor.__doc__
    make.__dict__["__signature__"] = signature
    return make


def _of(factor: Callable[..., float], base: float, options: dict[str, Any]) -> Any:
    return lambda step: factor(step, base, **options)
