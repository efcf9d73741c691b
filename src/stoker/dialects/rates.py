"""Learning-rate schedules of older trainers, as formulas with their signatures."""

from collections.abc import Callable
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


def schedule(name: str, factor: Callable[..., float], **defaults: Any) -> Any:
    """Return a class of schedulers that multiply the initial rates by a factor.

    Args:
        name: The name of the class.
        factor: Computes the factor from ``(step, base, …)``: the step, the initial rate, and the
            options. Its docstring becomes that of the class.
        defaults: The options in order; ``...`` marks a required one.
    """
    kind = Parameter.POSITIONAL_OR_KEYWORD
    options = [
        Parameter(option, kind, default=Parameter.empty if value is ... else value)
        for option, value in defaults.items()
    ]
    taken = [Parameter("optimizer", kind), *options]

    def build(self: FormulaLR, *args: Any, **kwargs: Any) -> None:
        FormulaLR.__init__(self, *args, **kwargs)

    build.__dict__["__signature__"] = Signature([Parameter("self", kind), *taken])
    return type(
        name,
        (FormulaLR,),
        {
            "__init__": build,
            "__doc__": factor.__doc__,
            "__module__": factor.__module__,
            "formula": staticmethod(factor),
            "signature": Signature(taken),
        },
    )
