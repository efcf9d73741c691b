"""`Prune`: let Optuna end trials that are not promising."""

from typing import Any

from stoker.hooks.base.monitor import Mode, Monitor, ResultHook
from stoker.run import Run


class Prune(ResultHook):
    """Report each result to an Optuna trial, and stop the run if the trial is to be pruned.

        prune = hooks.Prune(trial)
        history = Trainer(engine, [*hooks.default(), prune]).fit(…)
        prune.check()                               # raises optuna.TrialPruned if it was pruned

    The run itself ends as stopped, not as failed.

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
        self.reason: str | None = None
        self.same_on_all_ranks = False  # each rank may have a trial of its own

    def before_train(self, run: Run) -> None:
        """Forget how an earlier fit ended."""
        super().before_train(run)
        self.reason = None

    def on_result(self, run: Run, value: float) -> None:
        """Report the result."""
        self.trial.report(value, run.step)
        if self.trial.should_prune():
            self.reason = f"pruned at {self.monitor.name} {value:.6g}"
            run.stop(self.reason)

    def check(self) -> None:
        """Raise `optuna.TrialPruned` if the last fit was pruned."""
        if self.reason is not None:
            import optuna

            raise optuna.TrialPruned(self.reason)
