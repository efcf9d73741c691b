"""`KeepBest`: end training with the best weights."""

from copy import deepcopy
from typing import Any

from torch import Tensor

from stoker.engine import unwrap
from stoker.engine.averaging import end_training
from stoker.hooks.base.monitor import Mode, Monitor, ResultHook
from stoker.run import Run


class KeepBest(ResultHook):
    """Restore the weights of the best result when training ends without an error.

    The weights kept are the ones that were validated: with `EMA`, the averaged weights.

    Args:
        monitor: The result that decides, such as ``"val/accuracy"``.
        mode: ``"min"`` or ``"max"``; None infers it from the name where that is unambiguous.
    """

    replicated_state = True

    def __init__(self, monitor: str = "val/loss", *, mode: Mode | None = None) -> None:
        super().__init__(Monitor(monitor, mode))
        self.step: int | None = None
        self._weights: dict[str, Any] = {}

    def on_result(self, run: Run, value: float) -> None:
        """Keep a copy of the weights if the result is the best so far."""
        if self.monitor.improves(value):
            self.step = run.step
            weights = unwrap(run.engine.model).state_dict()
            self._weights = {name: _copy(weight) for name, weight in weights.items()}

    def after_train(self, run: Run) -> None:
        """Load the best weights into the model."""
        if run.error is None and self._weights:
            end_training(run.engine.optimizers.values())
            unwrap(run.engine.model).load_state_dict(self._weights)

    def state_dict(self) -> dict[str, Any]:
        """Return the best value, its step and its weights."""
        return {
            "monitor": self.monitor.state_dict(),
            "step": self.step,
            "weights": dict(self._weights),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the best value, its step and its weights."""
        self.monitor.load_state_dict(state["monitor"])
        self.step = state["step"]
        self._weights = dict(state["weights"])


def _copy(value: Any) -> Any:
    """Return a copy of a weight on the CPU, or of the extra state of a module."""
    return value.detach().cpu().clone() if isinstance(value, Tensor) else deepcopy(value)
