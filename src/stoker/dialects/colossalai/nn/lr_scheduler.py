"""Learning rates over a run. All take ``total_steps``, so that one signature fits a config.

Each is a formula of the step, so that a run which goes on has the very rates it would have had.
"""

import math
from bisect import bisect_right
from collections.abc import Sequence
from typing import Any

from torch.optim import Optimizer, lr_scheduler
from torch.optim.lr_scheduler import LRScheduler


class _Formula(LRScheduler):
    """``rate(base, step, steps)``, after a warm-up in a straight line, whose steps do not count."""

    def __init__(
        self, optimizer: Optimizer, total_steps: int, warmup_steps: int, last_epoch: int
    ) -> None:
        if not 0 <= warmup_steps < total_steps:
            raise ValueError(
                f"warmup_steps is from 0 to total_steps - 1, got {warmup_steps} of {total_steps}"
            )
        self.total_steps, self.warmup_steps = total_steps, warmup_steps
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[float]:  # type: ignore[override]
        """The rate of every parameter group."""
        step, warmup = self.last_epoch, self.warmup_steps
        if step < warmup:
            return [float(base) * (step + 1) / (warmup + 1) for base in self.base_lrs]
        steps = self.total_steps - warmup
        return [self.rate(float(base), min(step - warmup, steps), steps) for base in self.base_lrs]

    def rate(self, base: float, step: int, steps: int) -> float:
        """The rate after ``step`` of ``steps``."""
        raise NotImplementedError


class CosineAnnealingWarmupLR(_Formula):
    """Warm up, then fall along half a cosine to ``eta_min``."""

    flat = 0.0

    def __init__(
        self,
        optimizer: Optimizer,
        total_steps: int,
        warmup_steps: int = 0,
        eta_min: float = 0.0,
        last_epoch: int = -1,
    ) -> None:
        self.eta_min = eta_min
        super().__init__(optimizer, total_steps, warmup_steps, last_epoch)

    def rate(self, base: float, step: int, steps: int) -> float:
        """Flat for a share of the steps, then the cosine."""
        begin = int(steps * self.flat)
        done = max(0, step - begin) / (steps - begin)
        return self.eta_min + (base - self.eta_min) * (1 + math.cos(math.pi * done)) / 2


class CosineAnnealingLR(CosineAnnealingWarmupLR):
    """Fall along half a cosine to ``eta_min``."""

    def __init__(
        self, optimizer: Optimizer, total_steps: int, eta_min: float = 0.0, last_epoch: int = -1
    ) -> None:
        super().__init__(optimizer, total_steps, 0, eta_min, last_epoch)


class FlatAnnealingWarmupLR(CosineAnnealingWarmupLR):
    """Warm up, stay for ``pct_start`` of the rest, then fall along half a cosine."""

    def __init__(
        self,
        optimizer: Optimizer,
        total_steps: int,
        warmup_steps: int = 0,
        pct_start: float = 0.72,
        eta_min: float = 0.0,
        last_epoch: int = -1,
    ) -> None:
        if not 0 <= pct_start < 1:
            raise ValueError(f"pct_start is a share from 0 to below 1, got {pct_start}")
        self.flat = pct_start
        super().__init__(optimizer, total_steps, warmup_steps, eta_min, last_epoch)


class FlatAnnealingLR(FlatAnnealingWarmupLR):
    """Stay for ``pct_start`` of the run, then fall along half a cosine."""

    def __init__(
        self, optimizer: Optimizer, total_steps: int, pct_start: float = 0.72, last_epoch: int = -1
    ) -> None:
        super().__init__(optimizer, total_steps, 0, pct_start, 0.0, last_epoch)


class PolynomialWarmupLR(_Formula):
    """Warm up, then fall to ``end_lr`` by a power of what is left."""

    def __init__(
        self,
        optimizer: Optimizer,
        total_steps: int,
        warmup_steps: int = 0,
        end_lr: float = 0.0001,
        power: float = 1.0,
        last_epoch: int = -1,
    ) -> None:
        self.end_lr, self.power = end_lr, power
        super().__init__(optimizer, total_steps, warmup_steps, last_epoch)

    def rate(self, base: float, step: int, steps: int) -> float:
        """``end_lr`` and a power of what is left."""
        return self.end_lr + (base - self.end_lr) * float((1 - step / steps) ** self.power)


class PolynomialLR(PolynomialWarmupLR):
    """Fall to ``end_lr`` by a power of what is left."""

    def __init__(
        self,
        optimizer: Optimizer,
        total_steps: int,
        end_lr: float = 0.0001,
        power: float = 1.0,
        last_epoch: int = -1,
    ) -> None:
        super().__init__(optimizer, total_steps, 0, end_lr, power, last_epoch)


class LinearWarmupLR(PolynomialWarmupLR):
    """Warm up, then fall in a straight line to 0."""

    def __init__(
        self, optimizer: Optimizer, total_steps: int, warmup_steps: int = 0, last_epoch: int = -1
    ) -> None:
        super().__init__(optimizer, total_steps, warmup_steps, 0.0, 1.0, last_epoch)


class MultiStepWarmupLR(_Formula):
    """Warm up, then fall by ``gamma`` at each of the ``milestones``, which count from step 0."""

    def __init__(
        self,
        optimizer: Optimizer,
        total_steps: int,
        warmup_steps: int = 0,
        milestones: Sequence[int] = (),
        gamma: float = 0.1,
        last_epoch: int = -1,
    ) -> None:
        if not milestones:
            raise ValueError("milestones are the steps at which the rate falls, got none")
        self.milestones, self.gamma = sorted(milestones), gamma
        super().__init__(optimizer, total_steps, warmup_steps, last_epoch)

    def rate(self, base: float, step: int, steps: int) -> float:
        """A power of ``gamma``."""
        return base * float(self.gamma ** bisect_right(self.milestones, step + self.warmup_steps))


class MultiStepLR(MultiStepWarmupLR):
    """Fall by ``gamma`` at each of the ``milestones``."""

    def __init__(
        self,
        optimizer: Optimizer,
        total_steps: int,
        milestones: Sequence[int] = (),
        gamma: float = 0.1,
        last_epoch: int = -1,
    ) -> None:
        super().__init__(optimizer, total_steps, 0, milestones, gamma, last_epoch)


class OneCycleLR(lr_scheduler.OneCycleLR):
    """Torch's, whose highest rate is that of the optimizer."""

    def __init__(
        self,
        optimizer: Optimizer,
        total_steps: int,
        pct_start: float = 0.3,
        anneal_strategy: str = "cos",
        cycle_momentum: bool = True,
        base_momentum: float = 0.85,
        max_momentum: float = 0.95,
        div_factor: float = 25.0,
        final_div_factor: float = 10000.0,
        last_epoch: int = -1,
    ) -> None:
        super().__init__(
            optimizer,
            [group["lr"] for group in optimizer.param_groups],
            total_steps=total_steps,
            pct_start=pct_start,
            anneal_strategy=anneal_strategy,  # type: ignore[arg-type]
            cycle_momentum=cycle_momentum,
            base_momentum=base_momentum,
            max_momentum=max_momentum,
            div_factor=div_factor,
            final_div_factor=final_div_factor,
            last_epoch=last_epoch,
        )


def _with_total_steps(kind: type[LRScheduler], **defaults: Any) -> Any:
    """Torch's scheduler of that name; it needs no ``total_steps``, but takes them as all do."""

    def init(self: Any, optimizer: Optimizer, total_steps: int, **options: Any) -> None:
        kind.__init__(self, optimizer, **{**defaults, **options})

    return type(kind.__name__, (kind,), {"__init__": init, "__doc__": kind.__doc__})


LambdaLR = _with_total_steps(lr_scheduler.LambdaLR)
MultiplicativeLR = _with_total_steps(lr_scheduler.MultiplicativeLR)
StepLR = _with_total_steps(lr_scheduler.StepLR, step_size=1)
ExponentialLR = _with_total_steps(lr_scheduler.ExponentialLR, gamma=1.0)
