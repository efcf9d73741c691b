"""Learning-rate schedules of older trainers, as formulas with their signatures."""

from collections.abc import Callable
from inspect import Parameter, Signature
from typing import Any

from torch.optim.lr_scheduler import LambdaLR


def schedule(name: str, factor: Callable[..., float], **defaults: Any) -> Any:
    """Return a function that builds a scheduler, which multiplies the initial rates by a factor.

    A formula has no state, so a resumed run has exactly the rates of an uninterrupted one.

    Args:
        name: The name of the function.
        factor: Computes the factor from ``(step, base, …)``: the step, the initial rate, and the
            options. Its docstring becomes that of the function.
        defaults: The options in order; ``...`` marks a required one.
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
        options = dict(bound.arguments)
        optimizer, last = options.pop("optimizer"), options.pop("last_epoch", -1)
        bases = [float(group.get("initial_lr", group["lr"])) for group in optimizer.param_groups]
        return LambdaLR(optimizer, [_bind(factor, base, options) for base in bases], last)

    make.__name__ = make.__qualname__ = name
    make.__module__, make.__doc__ = factor.__module__, factor.__doc__
    make.__dict__["__signature__"] = signature
    return make


def _bind(factor: Callable[..., float], base: float, options: dict[str, Any]) -> Any:
    return lambda step: factor(step, base, **options)
