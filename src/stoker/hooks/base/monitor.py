"""`Monitor`: watch a result and decide which value is better; `ResultHook` acts on it."""

import math
from abc import abstractmethod
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from stoker.core.errors import check_number, did_you_mean
from stoker.hooks.base.hook import Hook, Priority
from stoker.run import Run

Mode: TypeAlias = Literal["min", "max"]

_SMALLER_IS_BETTER = ("loss", "error", "perplexity", "mse", "mae", "rmse")
_LARGER_IS_BETTER = (
    "acc",
    "f1",
    "auc",
    "auroc",
    "precision",
    "recall",
    "iou",
    "r2",
    "score",
    "top",
)


class Monitor:
    """Watches one result in ``run.metrics``.

    ``mode`` is derived from the name if that is clear ("loss" is minimized, "accuracy" maximized).
    """

    def __init__(self, name: str, mode: Mode | None = None, min_delta: float = 0.0) -> None:
        if mode not in ("min", "max", None):
            raise ValueError(f"mode must be 'min' or 'max', got {mode!r}")
        if not isinstance(name, str):
            raise TypeError(f"monitor is {name!r}, expected the name of a result: 'val/loss'")
        check_number("min_delta", min_delta)
        if min_delta < 0:
            raise ValueError(f"min_delta must not be negative, got {min_delta}")
        self.name = name
        self.mode = mode or _guess_mode(name)
        self.min_delta = min_delta
        self.best: float | None = None
        self._from_validation = name.startswith("val/")

    def check(self, run: Run) -> None:
        """Check before training that a watched validation result will exist."""
        if self._from_validation and not run.val_names:
            raise ValueError(
                f"{self.name!r} is monitored, but fit() got no validation loader: pass one, or "
                "monitor a training result"
            )

    def fresh(self, run: Run, *, at_epoch: bool) -> float | None:
        """Return the value if it is new at this point, else None.

        Validation results are new after the validation, training results at the end of an epoch.
        Outside of a fit nothing is new, so evaluating a finished run changes nothing.
        """
        if run.task != "fit" or at_epoch == self._from_validation:
            return None
        if self.name not in run.metrics:
            if at_epoch or run.val_name == run.val_names[-1]:
                self._raise_missing(run)
            return None
        if not at_epoch and not self.name.startswith(run.val_name + "/"):
            return None  # it belongs to another loader
        return run.metrics[self.name]

    def better(self, value: float, than: float | None) -> bool:
        """Return whether ``value`` is better by more than ``min_delta``; any number beats None."""
        if not math.isfinite(value):
            return False
        if than is None:
            return True
        gain = than - value if self.mode == "min" else value - than
        return gain > self.min_delta

    def improves(self, value: float) -> bool:
        """Return whether ``value`` is the best so far, and keep it if so."""
        if not self.better(value, self.best):
            return False
        self.best = value
        return True

    def state_dict(self) -> dict[str, Any]:
        """Return the best value so far."""
        return {"best": self.best}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        self.best = state["best"]

    def _raise_missing(self, run: Run) -> None:
        known = ", ".join(sorted(run.metrics)) or "none: add hooks.Loss() or hooks.Metrics()"
        near = did_you_mean(self.name, run.metrics)
        raise ValueError(f"there is no result {self.name!r}{near} (known results: {known})")


def _guess_mode(name: str) -> Mode:
    word = name.rsplit("/", maxsplit=1)[-1].lower()
    if any(part in word for part in _SMALLER_IS_BETTER):
        return "min"
    if any(part in word for part in _LARGER_IS_BETTER):
        return "max"
    raise ValueError(
        f"cannot tell whether lower or higher {name!r} is better: pass mode='min' or 'max'"
    )


def best_index(
    name: str, values: NDArray[np.float64], mode: Mode | None = None
) -> tuple[int, Mode] | None:
    """Return the index of the best finite value and which is better; None if that is unknown."""
    try:
        mode = Monitor(name, mode).mode
    except ValueError:
        return None
    finite = np.isfinite(values)
    ranked = np.where(finite, values if mode == "min" else -values, np.inf)
    return (int(ranked.argmin()), mode) if finite.any() else None


class ResultHook(Hook):
    """Calls `on_result` with each new value of the result that ``monitor`` names.

    Validation results arrive after each validation, training results after each epoch.
    """

    priority = Priority.EVALUATE
    same_on_all_ranks = True

    def __init__(self, monitor: Monitor) -> None:
        self.monitor = monitor
        self.consumes = (monitor.name,)

    def before_train(self, run: Run) -> None:
        """Check that the run produces the monitored result."""
        self.monitor.check(run)

    def after_val(self, run: Run) -> None:
        """Handle a new validation result."""
        self._handle(run, at_epoch=False)

    def after_epoch(self, run: Run) -> None:
        """Handle a new training result."""
        self._handle(run, at_epoch=True)

    @abstractmethod
    def on_result(self, run: Run, value: float) -> None:
        """Act on a new value."""

    def _handle(self, run: Run, *, at_epoch: bool) -> None:
        value = self.monitor.fresh(run, at_epoch=at_epoch)
        if value is not None:
            self.on_result(run, value)
