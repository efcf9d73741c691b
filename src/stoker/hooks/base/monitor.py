"""`Monitor`: a result that is watched, and which of two values of it is better."""

import math
from typing import Any, Literal, TypeAlias

from stoker.core.errors import did_you_mean
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
    """Watches one name of ``run.metrics``.

    ``mode`` is found from the name where that is plain ("loss" goes down, "accuracy" up).
    """

    def __init__(self, name: str, mode: Mode | None = None, min_delta: float = 0.0) -> None:
        if mode not in ("min", "max", None):
            raise ValueError(f"mode is 'min' or 'max', got {mode!r}")
        if min_delta < 0:
            raise ValueError(f"min_delta must not be negative, got {min_delta}")
        self.name = name
        self.mode = mode or _guess_mode(name)
        self.min_delta = min_delta
        self.best: float | None = None
        self._from_validation = name.startswith("val/")

    def check(self, run: Run) -> None:
        """Before training: refuse to watch validation where there will be none."""
        if self._from_validation and not run.val_names:
            raise ValueError(
                f"{self.name!r} is watched, but fit() was given no validation loader: "
                "pass one, or watch a result of training"
            )

    def fresh(self, run: Run, *, at_epoch: bool) -> float | None:
        """The value if it is news at this point, else None.

        Results of a validation come with it, those of training with the end of an epoch. Only a
        fit makes news: looking at a finished run changes nothing.
        """
        if run.task != "fit" or at_epoch == self._from_validation:
            return None
        if self.name not in run.metrics:
            if at_epoch or run.val_name == run.val_names[-1]:
                self._complain(run)
            return None
        if not at_epoch and not self.name.startswith(run.val_name + "/"):
            return None  # that of another loader
        return run.metrics[self.name]

    def better(self, value: float, than: float | None) -> bool:
        """Whether ``value`` is better by more than ``min_delta``; anything finite beats None."""
        if not math.isfinite(value):
            return False
        if than is None:
            return True
        gain = than - value if self.mode == "min" else value - than
        return gain > self.min_delta

    def improves(self, value: float) -> bool:
        """Whether it is better than the best so far, which it then is."""
        if not self.better(value, self.best):
            return False
        self.best = value
        return True

    def state_dict(self) -> dict[str, Any]:
        """The best value so far."""
        return {"best": self.best}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take back what `state_dict` gave."""
        self.best = state["best"]

    def _complain(self, run: Run) -> None:
        known = (
            ", ".join(sorted(run.metrics)) or "nothing: hooks.Loss() and hooks.Metrics() measure"
        )
        near = did_you_mean(self.name, run.metrics)
        raise ValueError(f"no result is named {self.name!r}{near} (there is {known})")


def _guess_mode(name: str) -> Mode:
    word = name.rsplit("/", maxsplit=1)[-1].lower()
    if any(part in word for part in _SMALLER_IS_BETTER):
        return "min"
    if any(part in word for part in _LARGER_IS_BETTER):
        return "max"
    raise ValueError(
        f"whether {name!r} should go down or up does not show: give mode='min' or 'max'"
    )
