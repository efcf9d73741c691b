"""The metrics of Orca; results are named ``val_<name>``."""

from typing import Any

from stoker import metrics

__all__ = ["AUC", "MAE", "MSE", "Accuracy", "BinaryAccuracy", "Top5Accuracy", "named"]


class Accuracy(metrics.Accuracy):
    """The fraction of samples whose largest output is at their class."""


class BinaryAccuracy(metrics.Accuracy):
    """The accuracy of one probability per sample."""

    def __init__(self, threshold: float = 0.5) -> None:
        super().__init__(threshold=threshold)


class Top5Accuracy(metrics.Accuracy):
    """The fraction of samples whose class is among the five largest outputs."""

    def __init__(self) -> None:
        super().__init__(5)


class _Torchmetrics:
    """Build a torchmetrics metric under the name of Orca."""

    def __init__(self, name: str, target: str) -> None:
        self._name, self._target = name, target

    def __call__(self) -> Any:
        metric: Any = metrics.get(self._target)
        metric.orca_name = self._name
        return metric


MSE = _Torchmetrics("MSE", "MeanSquaredError")
MAE = _Torchmetrics("MAE", "MeanAbsoluteError")
AUC = _Torchmetrics("AUC", "BinaryAUROC")


def named(given: Any) -> dict[str, Any]:
    """Return metrics by result name, from one metric, a list, or a mapping."""
    if given is None:
        return {}
    if isinstance(given, dict):
        return dict(given)
    several = given if isinstance(given, list | tuple) else [given]
    return {
        m if isinstance(m, str) else getattr(m, "orca_name", type(m).__name__): m for m in several
    }
