"""`MetricCollection`: several metrics over the same batches."""

from collections.abc import Mapping
from typing import Any

from torch import nn

from stoker.metrics.metric import Metric


class MetricCollection(dict[str, Metric]):
    """A dict of metrics that are updated with the same batches.

    torchmetrics validates the arguments of every update. Here only the first batch of each pass is
    validated, which makes updates much cheaper; `end_pass` restores the setting.
    """

    def __init__(self, metrics: Mapping[str, Metric]) -> None:
        super().__init__(metrics)
        modules = [m for one in self.values() if isinstance(one, nn.Module) for m in one.modules()]
        self._validating: list[Any] = [
            m for m in modules if getattr(m, "validate_args", None) is True
        ]
        self._is_on = bool(self._validating)

    def begin_pass(self) -> None:
        """Reset all metrics."""
        self.end_pass()
        for metric in self.values():
            metric.reset()

    def update_all(self, outputs: Any, targets: Any) -> None:
        """Update all metrics with one batch."""
        for metric in self.values():
            metric.update(outputs, targets)
        if self._is_on:
            self._set_validation(on=False)

    def end_pass(self) -> None:
        """Turn validation on again."""
        self._set_validation(on=True)

    def _set_validation(self, *, on: bool) -> None:
        self._is_on = on and bool(self._validating)
        for module in self._validating:
            module.validate_args = on
