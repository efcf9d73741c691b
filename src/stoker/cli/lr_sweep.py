"""A sweep of the learning rate, and which one it suggests."""

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
_GIVES_UP_AT = 4.0  # times the lowest loss


@dataclass
class Sweep:
    """Losses by learning rate, smoothed, and the rate at which the loss falls fastest."""

    rates: list[float]
    losses: list[float]
    suggestion: float | None


class _RaiseRate(Hook):
    """Sets the rate of every step, higher each time, until the loss has clearly gone up."""

    priority = 100  # after whatever else sets a rate

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
        loss = run.loss if run.outputs else None  # none where other pipeline stages have it
        here = 0.0 if loss is None else float(sum(output.weight or 0 for output in run.outputs))
        total, weight = dist.all_reduce_sum(here * float(loss or 0.0), here)
        if not weight:
            return
        self._mean = _SMOOTHING * self._mean + (1 - _SMOOTHING) * (total / weight)
        smooth = self._mean / (1 - _SMOOTHING ** (len(self.losses) + 1))
        self.rates.append(self._low * self._growth ** len(self.rates))
        self.losses.append(smooth)
        if not math.isfinite(smooth) or smooth > _GIVES_UP_AT * min(self.losses):
            run.stop("the loss went up")


def lr_find(
    trainer: Trainer, loader: Any, *, low: float = 1e-7, high: float = 1.0, steps: int = 100
) -> Sweep:
    """Train on ``loader`` with a rate that grows from ``low`` to ``high``; what the loss did.

    Model, optimizer, scheduler and random numbers are afterwards as before, and nothing is
    written.
    """
    if not 0 < low < high:
        raise ValueError(f"the rates go from low to high, got {low:g} to {high:g}")
    if steps < 3:
        raise ValueError(f"a sweep takes at least 3 steps, got {steps}")
    engine = trainer.engine
    kept = deepcopy(engine.state_dict())
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
        engine.load_state_dict(kept)
        engine.zero_grad()
    return Sweep(sweep.rates, sweep.losses, _steepest(sweep.rates, sweep.losses))


def _steepest(rates: list[float], losses: list[float]) -> float | None:
    """The rate at which the loss falls fastest, before its lowest point; None if it never falls."""
    finite = [loss for loss in losses if math.isfinite(loss)]
    if len(finite) < 3:
        return None
    lowest = finite.index(min(finite))
    slopes = [finite[i + 1] - finite[i - 1] for i in range(1, lowest)]
    if not slopes or min(slopes) >= 0:
        return None
    return rates[1 + slopes.index(min(slopes))]
