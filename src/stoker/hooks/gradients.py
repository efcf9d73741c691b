"""Hooks about gradients: `GradNorm` reports their norm, `NaNGuard` handles NaN and infinity."""

from typing import Any, Literal

from torch import Tensor, isfinite

from stoker.core import dist
from stoker.core.log import get_logger
from stoker.hooks.base.hook import Hook, Priority
from stoker.run import Run

_log = get_logger()


class GradNorm(Hook):
    """Report ``grad_norm``, the 2-norm of all gradients before clipping."""

    observes = True
    priority = Priority.MEASURE
    same_on_all_ranks = True
    produces = ("grad_norm",)

    def before_update(self, run: Run) -> None:
        """Compute the norm."""
        run.events.put_scalar("grad_norm", _grad_norm(run))


class NaNGuard(Hook):
    """Check the loss and the gradients before each update, and act if one is NaN or infinite.

    All ranks take the same decision. The check synchronizes with the device once per step. In
    fp16 only the loss is checked, because the loss scaler handles gradients that overflow.

    Args:
        action: ``"stop"`` ends the run before the update. ``"skip"`` skips the update, which then
            does not count as a step. ``"ignore"`` performs the update and logs a warning.
    """

    priority = Priority.ADJUST
    same_on_all_ranks = True

    def __init__(self, action: Literal["stop", "skip", "ignore"] = "stop") -> None:
        if action not in ("stop", "skip", "ignore"):
            raise ValueError(f"action must be 'stop', 'skip' or 'ignore', got {action!r}")
        self.action = action
        self.found = 0

    def before_update(self, run: Run) -> None:
        """Check the loss and the gradients."""
        loss = run.loss if run.outputs else None  # only the last pipeline stage has a loss
        loss_is_bad = loss is not None and not bool(isfinite(loss))
        bad = loss_is_bad or (run.engine.scaler is None and not bool(isfinite(_grad_norm(run))))
        if not dist.any_rank(bad):
            return
        self.found += 1
        what = f"{'the loss' if loss_is_bad else 'a gradient'} is NaN or infinite at {run.where()}"
        if self.action == "ignore":
            _log.warning(f"{what}: updating anyway (action='ignore')")
            return
        run.skip_update(what)
        if self.action == "stop":
            run.requests.confirm_stop(what)  # all ranks agree already
        else:
            _log.warning(f"{what}: the update is skipped")

    def state_dict(self) -> dict[str, Any]:
        """Return how many bad updates were found."""
        return {"found": self.found}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore how many bad updates were found."""
        self.found = state["found"]


def _grad_norm(run: Run) -> Tensor:
    """Return the 2-norm of the gradients of all optimizers, as a tensor on the device."""
    groups = [group for one in run.engine.optimizers.values() for group in one.param_groups]
    return run.engine.parallel_model.total_norm(p for group in groups for p in group["params"])
