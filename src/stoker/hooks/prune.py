"""`Prune`: let Optuna end trials that are not promising."""

from typing import Any

from stoker.hooks.base.monitor import Mode, Monitor, ResultHook
from stoker.run import Run


class Prune(ResultHook):
    """Report each result to an Optuna trial, and stop the run if the trial is to be pruned.

        history = trainer.fit(…)                    # with hooks.Prune(trial)
        if (history.stop_reason or "").startswith("pruned"):
            raise optuna.TrialPruned(history.stop_reason)

    The run ends as stopped, not as failed: raise `optuna.TrialPruned` after the fit, not within.

    Args:
        trial: The trial, with ``report(value, step)`` and ``should_prune()``.
        monitor: The result to report.
        mode: ``"min"`` or ``"max"``; None infers it from the name where that is unambiguous.
    """

    def __init__(self, trial: Any, monitor: str = "val/loss", *, mode: Mode | None = None) -> None:
        for method in ("report", "should_prune"):
            if not callable(getattr(trial, method, None)):
                raise TypeError(
                    f"trial is a {type(trial).__name__} without {method}(), expected optuna's trial"
                )
        super().__init__(Monitor(monitor, mode))
        self.trial = trial
        self.same_on_all_ranks = False  # each rank may have a trial of its own

    def on_result(self, run: Run, value: float) -> None:
        """Report the result."""
        self.trial.report(value, run.step)
        if self.trial.should_prune():
            run.stop(f"pruned at {self.monitor.name} {value:.6g}")
