"""`TimeLimit`: end a run after some minutes of training."""

from typing import Any

from stoker.core import dist
from stoker.core.errors import check_number
from stoker.hooks.base.hook import Hook
from stoker.run import Run


class TimeLimit(Hook):
    """Stop training after a number of minutes, counted over all attempts of the run.

        hooks=[*hooks.default(), hooks.TimeLimit(minutes=90)]

    Args:
        minutes: The time to train, validation included. The step in progress is finished.
    """

    same_on_all_ranks = True

    def __init__(self, minutes: float) -> None:
        check_number("minutes", minutes)
        if not minutes > 0:
            raise ValueError(f"minutes must be positive, got {minutes}")
        self.minutes = minutes
        self._used = self._began = 0.0

    def before_train(self, run: Run) -> None:
        """Start the clock, at the time that earlier attempts have used."""
        self._began = dist.now() - self._used

    def after_step(self, run: Run) -> None:
        """Stop if the time is over."""
        self._used = dist.now() - self._began
        if self._used >= 60 * self.minutes:
            run.stop(f"the time limit of {self.minutes:g} minutes")

    def state_dict(self) -> dict[str, Any]:
        """Return the seconds used so far."""
        return {"used": self._used}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the seconds used so far."""
        self._used = state["used"]
