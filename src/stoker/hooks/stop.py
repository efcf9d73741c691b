"""Hooks that end a run, or leave out an update."""

import math
from typing import Any, Literal

from torch import isfinite

from stoker.core import dist
from stoker.core.log import get_logger
from stoker.hooks.base.hook import Hook, Priority
from stoker.hooks.base.monitor import Mode, Monitor
from stoker.hooks.measure import total_grad_norm
from stoker.run import Run

_log = get_logger()


class EarlyStopping(Hook):
    """Stops after ``patience`` results in a row that were no improvement.

    Args:
        monitor: the result to watch. A name that does not exist is an error after the first
            evaluation.
        patience: how many evaluations without improvement end the run.
        min_delta: by how much a value must be better to count.
        mode: whether smaller or larger is better; found from the name where that is plain.
        baseline: values that are not better than this count as no improvement.
        check_finite: stop at once on NaN or infinity.
    """

    priority = Priority.EVALUATE
    same_on_all_ranks = True

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
        if patience < 1:
            raise ValueError(f"patience must be at least 1, got {patience}")
        self.monitor = Monitor(monitor, mode, min_delta)
        self.consumes = (self.monitor.name,)
        self.patience = patience
        self.baseline = baseline
        self.check_finite = check_finite
        self.waited = 0

    def before_train(self, run: Run) -> None:
        """See that there will be something to watch."""
        self.monitor.check(run)

    def after_val(self, run: Run) -> None:
        """Judge a validation result."""
        self._judge(run, self.monitor.fresh(run, at_epoch=False))

    def after_epoch(self, run: Run) -> None:
        """Judge a result of training."""
        self._judge(run, self.monitor.fresh(run, at_epoch=True))

    def _judge(self, run: Run, value: float | None) -> None:
        reason = self.judge(value) if value is not None else None
        if reason is not None:
            run.stop(reason)

    def judge(self, value: float) -> str | None:
        """Take in a result; why the run should end now, None while it should go on."""
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
        """The best value and how long it has stood."""
        return {"monitor": self.monitor.state_dict(), "waited": self.waited}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take back what `state_dict` gave."""
        self.monitor.load_state_dict(state["monitor"])
        self.waited = state["waited"]


class NaNGuard(Hook):
    """Looks at loss and gradients before each update; acts when one is NaN or infinite.

    All processes decide alike, from a flag they share. Looking waits for the device once a step.
    With fp16 it looks at the loss alone: gradients that overflow are the loss scaler's business.

    Args:
        action: "stop" ends the run before the update is made; "skip" leaves the update out, and
            it does not count as a step; "ignore" makes it and says so.
    """

    priority = Priority.ADJUST
    same_on_all_ranks = True

    def __init__(self, action: Literal["stop", "skip", "ignore"] = "stop") -> None:
        if action not in ("stop", "skip", "ignore"):
            raise ValueError(f"action is 'stop', 'skip' or 'ignore', got {action!r}")
        self.action = action
        self.found = 0

    def before_update(self, run: Run) -> None:
        """Look, and act."""
        loss = run.loss if run.outputs else None  # none where other pipeline stages have it
        loss_is_bad = loss is not None and not bool(isfinite(loss))
        bad = loss_is_bad or (
            run.engine.scaler is None and not bool(isfinite(total_grad_norm(run)))
        )
        if not dist.any_rank(bad):
            return
        self.found += 1
        what = f"{'the loss' if loss_is_bad else 'a gradient'} is NaN or infinite at {run.where()}"
        if self.action == "ignore":
            _log.warning(f"{what}: the update is made all the same")
            return
        run.skip_update(what)
        if self.action == "stop":
            run.requests.confirm_stop(what)  # all have found it
        else:
            _log.warning(f"{what}: the update is left out")

    def state_dict(self) -> dict[str, Any]:
        """How often it was found."""
        return {"found": self.found}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take back what `state_dict` gave."""
        self.found = state["found"]
