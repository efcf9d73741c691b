"""Learning-rate schedulers. All take ``total_steps``, so that they can be swapped in a config."""

from collections.abc import Callable
from typing import Any

from torch.optim import Optimizer, lr_scheduler
from torch.optim.lr_scheduler import LRScheduler

from stoker.dialects.rates import cosine, falls, power, schedule, warmed


def _lr(name: str, shape: Callable[..., float], more: int = 0, **options: Any) -> Any:
    made = schedule(name, warmed(shape, more), total_steps=..., **options, last_epoch=-1)
    made.__module__ = __name__
    return made


class CosineAnnealingLR(_lr("CosineAnnealingLR", cosine, eta_min=0.0)):  # type: ignore[misc]
    """Decay as a cosine to ``eta_min``; ``T_max`` is torch's name for ``total_steps``."""

    def __init__(
        self, optimizer: Optimizer, total_steps: Any = None, *args: Any, **own: Any
    ) -> None:
        other = own.pop("T_max", None)
        if (total_steps is None) is (other is None):
            raise TypeError("CosineAnnealingLR needs total_steps, or T_max, which is the same")
        super().__init__(optimizer, total_steps or other, *args, **own)


CosineAnnealingWarmupLR = _lr("CosineAnnealingWarmupLR", cosine, warmup_steps=0, eta_min=0.0)
FlatAnnealingLR = _lr("FlatAnnealingLR", cosine, pct_start=0.72)
FlatAnnealingWarmupLR = _lr(
    "FlatAnnealingWarmupLR", cosine, warmup_steps=0, pct_start=0.72, eta_min=0.0
)
LinearWarmupLR = _lr("LinearWarmupLR", power, more=1, warmup_steps=0)
PolynomialLR = _lr("PolynomialLR", power, end_lr=0.0001, power=1.0)
PolynomialWarmupLR = _lr("PolynomialWarmupLR", power, warmup_steps=0, end_lr=0.0001, power=1.0)
MultiStepLR = _lr("MultiStepLR", falls, milestones=(), gamma=0.1)
MultiStepWarmupLR = _lr("MultiStepWarmupLR", falls, warmup_steps=0, milestones=(), gamma=0.1)


def _of_torch(kind: type[LRScheduler], *names: str, **defaults: Any) -> Any:
    """Return torch's class with a second argument, ``total_steps``, and its ``names`` after it."""

    def build(self: Any, optimizer: Optimizer, total_steps: int, *args: Any, **own: Any) -> None:
        options = {**defaults, **dict(zip((*names, "last_epoch"), args, strict=False)), **own}
        if kind is lr_scheduler.OneCycleLR:  # its maximum is the rate of the optimizer
            options["total_steps"] = total_steps
            options["max_lr"] = [group["lr"] for group in optimizer.param_groups]
        kind.__init__(self, optimizer, **options)

    return type(kind.__name__, (kind,), {"__init__": build, "__doc__": kind.__doc__})


LambdaLR = _of_torch(lr_scheduler.LambdaLR, "lr_lambda")
MultiplicativeLR = _of_torch(lr_scheduler.MultiplicativeLR, "lr_lambda")
StepLR = _of_torch(lr_scheduler.StepLR, "step_size", "gamma", step_size=1)
ExponentialLR = _of_torch(lr_scheduler.ExponentialLR, "gamma", gamma=1.0)
OneCycleLR = _of_torch(
    lr_scheduler.OneCycleLR,
    *("pct_start", "anneal_strategy", "cycle_momentum", "base_momentum", "max_momentum"),
    *("div_factor", "final_div_factor"),
)
