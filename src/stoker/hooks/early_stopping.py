"""`EarlyStopping`: stop when a result no longer improves."""

import math
from typing import Any

from stoker.core.errors import check_number
from stoker.hooks.base.monitor import Mode, Monitor, ResultHook
from stoker.run import Run


class EarlyStopping(ResultHook):
    """Stop training after ``patience`` evaluations without an improvement.

        hooks=[*hooks.default(), hooks.EarlyStopping("val/accuracy", patience=5)]

    Args:
        monitor: The result to watch. A name that no hook produces is an error.
        patience: How many evaluations in a row may bring no improvement.
        min_delta: The smallest change that counts as an improvement.
        mode: ``"min"`` or ``"max"``; None infers it from the name where that is unambiguous.
        baseline: A value that the result must beat to count as an improvement.
        check_finite: Stop immediately if the result is NaN or infinite.
    """

    def __init__(
        self,
        monitor: str = "val/loss",
        *,
        patience: int = 3,
        min_delta: float = 0.0,
        mode: Mode | None = None,
        baseline: float | None = None,
        check_finite: bool = True,
    ) -> None:
        check_number("patience", patience, integer=True)
        if patience < 1:
            raise ValueError(f"patience must be at least 1, got {patience}")
        super().__init__(Monitor(monitor, mode, min_delta))
        self.patience = patience
        self.baseline = baseline
        self.check_finite = check_finite
        self.waited = 0

    def on_result(self, run: Run, value: float) -> None:
        """Stop the run if the result has not improved for long enough."""
        reason = self.check(value)
        if reason is not None:
            run.stop(reason)

    def check(self, value: float) -> str | None:
        """Count a result and return the reason to stop now, or None to continue."""
        name = self.monitor.name
        if self.check_finite and not math.isfinite(value):
            return f"early stopping: {name} is {value}"
        improved = self.monitor.improves(value)
        if improved and (self.baseline is None or self.monitor.better(value, self.baseline)):
            self.waited = 0
            return None
        self.waited += 1
        if self.waited < self.patience:
            return None
        best = "none" if self.monitor.best is None else f"{self.monitor.best:.6g}"
        return (
            f"early stopping: {name} has not improved in {self.waited} evaluations "
            f"(now {value:.6g}, best {best})"
        )

    def state_dict(self) -> dict[str, Any]:
        """Return the best value and the number of evaluations since."""
        return {"monitor": self.monitor.state_dict(), "waited": self.waited}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the best value and the number of evaluations since."""
        self.monitor.load_state_dict(state["monitor"])
        self.waited = state["waited"]
