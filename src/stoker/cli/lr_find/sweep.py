"""The learning-rate sweep and the rate that it suggests."""

import math
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

from stoker.core import dist
from stoker.core.seed import preserve_rng
from stoker.data import BatchFeeder
from stoker.hooks import Hook
from stoker.run import Run
from stoker.trainer import Trainer

_SMOOTHING = 0.9
_DIVERGED_AT = 4.0  # times the lowest loss


@dataclass
class Sweep:
    """Smoothed losses by learning rate, and the rate of the steepest decrease."""

    rates: list[float]
    losses: list[float]
    suggestion: float | None


class _RaiseRate(Hook):
    """Increases the learning rate at every step until the loss diverges."""

    priority = 100  # after all hooks that set a rate

    def __init__(self, low: float, high: float, steps: int) -> None:
        self._low, self._growth = low, (high / low) ** (1 / max(1, steps - 1))
        self.rates: list[float] = []
        self.losses: list[float] = []
        self._mean = 0.0

    def before_step(self, run: Run) -> None:
        rate = self._low * self._growth ** len(self.rates)
        for optimizer in run.engine.optimizers.values():
            for group in optimizer.param_groups:
                group["lr"] = rate

    def after_step(self, run: Run) -> None:
        loss = run.loss if run.outputs else None  # None unless this is the last pipeline stage
        local = 0.0 if loss is None else float(sum(output.weight or 0 for output in run.outputs))
        total, weight = dist.sum_observed(local * float(loss or 0.0), local)
        if not weight:
            return
        self._mean = _SMOOTHING * self._mean + (1 - _SMOOTHING) * (total / weight)
        smooth = self._mean / (1 - _SMOOTHING ** (len(self.losses) + 1))
        self.rates.append(self._low * self._growth ** len(self.rates))
        self.losses.append(smooth)
        if not math.isfinite(smooth) or smooth > _DIVERGED_AT * min(self.losses):
            run.stop("the loss diverged")


def lr_find(
    trainer: Trainer, loader: Any, *, low: float = 1e-7, high: float = 1.0, steps: int = 100
) -> Sweep:
    """Train on ``loader`` while the rate grows from ``low`` to ``high``, and return the losses.

    The model, optimizer, scheduler and random generators are restored afterwards, and nothing is
    written to disk.
    """
    if not 0 < low < high:
        raise ValueError(f"low must be positive and less than high, got low={low:g} high={high:g}")
    if steps < 3:
        raise ValueError(f"steps must be at least 3, got {steps}")
    engine = trainer.engine
    before = deepcopy(engine.state_dict())
    sweep = _RaiseRate(low, high, steps)
    trial = Trainer(
        engine,
        [sweep],
        step=trainer.step,
        accumulate=trainer.accumulate,
        last_window=trainer.last_window,
    )
    generators = BatchFeeder(loader).generators()
    try:
        with preserve_rng(*generators):
            trial.fit(loader, max_steps=steps, validate_every=None)
    finally:
        engine.load_state_dict(before)
        engine.zero_grad()
    return Sweep(sweep.rates, sweep.losses, _steepest(sweep.rates, sweep.losses))


def _steepest(rates: list[float], losses: list[float]) -> float | None:
    """Return the rate of the steepest decrease before the minimum; None if there is none."""
    finite = [loss for loss in losses if math.isfinite(loss)]
    if len(finite) < 3:
        return None
    lowest = finite.index(min(finite))
    slopes = [finite[i + 1] - finite[i - 1] for i in range(1, lowest)]
    if not slopes or min(slopes) >= 0:
        return None
    return rates[1 + slopes.index(min(slopes))]
