"""Several metrics over one pass after another."""

from collections.abc import Mapping
from typing import Any

from torch import nn

from stoker.metrics.metric import Metric


class MetricCollection(dict[str, Metric]):
    """Metrics by name, which take in the same batches.

    Those of torchmetrics validate the first batch of a pass and take the others as they are.

    Args:
        metrics: the metrics; whether they validate is afterwards as it was.
    """

    def __init__(self, metrics: Mapping[str, Metric]) -> None:
        super().__init__(metrics)
        modules = [m for one in self.values() if isinstance(one, nn.Module) for m in one.modules()]
        self._validate: list[Any] = [
            m for m in modules if getattr(m, "validate_args", None) is True
        ]
        self._validates = bool(self._validate)

    def begin(self) -> None:
        """Forget all updates."""
        self.end()
        for metric in self.values():
            metric.reset()

    def take(self, outputs: Any, targets: Any) -> None:
        """Take in one batch."""
        for metric in self.values():
            metric.update(outputs, targets)
        if self._validates:
            self._set(validate=False)

    def end(self) -> None:
        """A pass is over."""
        self._set(validate=True)

    def _set(self, *, validate: bool) -> None:
        self._validates = validate and bool(self._validate)
        for module in self._validate:
            module.validate_args = validate
