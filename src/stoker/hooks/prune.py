"""`Prune`: let Optuna end trials that are not promising."""

from typing import Any

from stoker.core import dist
from stoker.hooks.base.monitor import Mode, Monitor, ResultHook
from stoker.run import Run

_PRUNED = "pruned at"


class Prune(ResultHook):
    """Report each result to an Optuna trial, and stop the run if the trial is to be pruned.

        prune = hooks.Prune(trial)
        history = Trainer(engine, [*hooks.default(), prune]).fit(…)
        prune.check()                               # raises optuna.TrialPruned if it was pruned

    The run itself ends as stopped, not as failed. A trial that has trained to its end is complete
    and not pruned. The trial is no part of the identity of the run: one with the same values
    resumes what another has begun, and gets the results so far.

    In a job of several ranks, the trial of rank 0 gets the results and decides for all of them;
    the others may pass None.

    Args:
        trial: The trial, with ``report(value, step)`` and ``should_prune()``.
        monitor: The result to report.
        mode: ``"min"`` or ``"max"``; None infers it from the name where that is unambiguous.
    """

    observes = True  # the study decides; up to then a pruned run is the same as any other

    def __init__(self, trial: Any, monitor: str = "val/loss", *, mode: Mode | None = None) -> None:
        if trial is not None or dist.world_size() == 1:
            _check_trial(trial)
        super().__init__(Monitor(monitor, mode))
        self.trial = trial
        self.reason: str | None = None
        self._results: dict[int, float] = {}
        self._reported: set[int] = set()
        self.same_on_all_ranks = False  # only rank 0 has a trial

    def before_train(self, run: Run) -> None:
        """Forget how an earlier fit ended, and check that the rank that reports has a trial."""
        super().before_train(run)
        self.reason = None
        if dist.is_main():
            _check_trial(self.trial)

    def on_result(self, run: Run, value: float) -> None:
        """Report the result on rank 0."""
        if not dist.is_main():
            return
        self._results[run.step] = value
        self._report()
        if self.trial.should_prune() and not run.limit_reached:
            run.stop(f"{_PRUNED} {self.monitor.name} {value:.6g}")

    def after_train(self, run: Run) -> None:
        """Keep whether the run was pruned, on every rank."""
        reason = run.stop_reason or ""
        self.reason = reason if reason.startswith(_PRUNED) else None

    def state_dict(self) -> dict[str, Any]:
        """Return the results so far by step."""
        return {"results": {str(step): value for step, value in self._results.items()}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Report the results of earlier attempts: a new study needs them to prune other trials."""
        self._results = {int(step): value for step, value in state.get("results", {}).items()}
        if self.trial is not None:
            self._report()

    def _report(self) -> None:
        """Report each result that this trial has not got; Optuna takes a step only once."""
        for step, value in self._results.items():
            if step not in self._reported:
                self.trial.report(value, step)
                self._reported.add(step)

    def check(self) -> None:
        """Raise `optuna.TrialPruned` if the last fit was pruned."""
        if self.reason is not None:
            import optuna

            raise optuna.TrialPruned(self.reason)


def _check_trial(trial: Any) -> None:
    for method in ("report", "should_prune"):
        if not callable(getattr(trial, method, None)):
            raise TypeError(
                f"trial is a {type(trial).__name__} without {method}(), expected optuna's trial"
            )
