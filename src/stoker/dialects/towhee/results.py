"""The loss and the metric of one pass over the data."""

from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from stoker import Output, Run
from stoker.core.types import Stateful
from stoker.dialects.towhee.metrics import as_number
from stoker.metrics import Mean


class PassResults:
    """The mean loss over samples and the metric of one pass.

    Args:
        prefix: Prepended to the names in the logs.
    """

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix
        self.metric: Any = None
        self.loss_metric: Any = None  # in the place of the mean, for overridden methods
        self.mean = Mean()
        self.reset()

    def reset(self) -> None:
        """Start a pass."""
        self.mean.reset()
        self.last: Tensor | float | None = None
        self.given: dict[str, Any] | None = None
        """The values that an overridden method has returned, which replace all others."""
        for one in (self.metric, self.loss_metric):
            if one is not None:
                one.reset()

    def add_loss(self, loss: Any, weight: float) -> None:
        """Add the loss of one batch."""
        self.last = loss.detach() if isinstance(loss, Tensor) else loss
        self.mean.update(self.last, weight)

    def add(self, run: Run, output: Output, weight: int) -> None:
        """Add the output of one batch."""
        if output.loss is not None and weight:
            self.add_loss(output.loss / weight if run.engine.loss_is_sum else output.loss, weight)
        if self.metric is not None and weight and output.outputs is not None:
            outputs = getattr(output.outputs, "logits", output.outputs)
            self.metric.update(outputs.detach(), output.targets)

    def values(self) -> dict[str, Any]:
        """Return the available numbers by their names in the logs."""
        if self.given is not None:
            return self.given
        named = {
            "step_loss": None if self.last is None else float(self.last),
            "epoch_loss": None if self.mean.empty else self.mean.compute(),
            "epoch_metric": as_number(self.metric.compute()) if self.metric is not None else None,
        }
        return {f"{self.prefix}{n}": value for n, value in named.items() if value is not None}

    def as_metric(self, weight: float) -> Any:
        """Return the mean loss as a metric, for a batch of so many samples."""
        return SimpleNamespace(
            update=lambda loss: self.add_loss(loss, weight),
            compute=lambda: torch.tensor(self.mean.compute(), dtype=torch.float64),
            reset=self.mean.reset,
            to=lambda *_: None,
        )

    def state_dict(self) -> dict[str, Any]:
        """Return the sums so far."""
        return {
            "mean": self.mean.state_dict(),
            "last": None if self.last is None else float(self.last),
            **{name: one.state_dict() for name, one in self._stateful().items()},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the saved state."""
        self.mean.load_state_dict(state["mean"])
        self.last = state["last"]
        for name, one in self._stateful().items():
            one.load_state_dict(state.get(name, {}))

    def _stateful(self) -> dict[str, Stateful]:
        own = {"metric": self.metric, "loss_metric": self.loss_metric}
        return {name: one for name, one in own.items() if isinstance(one, Stateful)}
