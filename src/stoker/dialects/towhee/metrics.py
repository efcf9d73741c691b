"""Metrics by current and former torchmetrics names."""

from typing import Any

import torch
from torch import Tensor

from stoker import metrics
from stoker.core.errors import did_you_mean

_OLD = {
    "Accuracy": "accuracy", "F1": "F1Score", "FBeta": "FBetaScore", "Hinge": "HingeLoss",
    "IoU": "JaccardIndex", "MatthewsCorrcoef": "MatthewsCorrCoef",
    "PearsonCorrcoef": "PearsonCorrCoef", "SpearmanCorrcoef": "SpearmanCorrCoef",
    "PIT": "PermutationInvariantTraining", "PSNR": "PeakSignalNoiseRatio",
    "SDR": "SignalDistortionRatio", "SI_SDR": "ScaleInvariantSignalDistortionRatio",
    "SI_SNR": "ScaleInvariantSignalNoiseRatio", "SNR": "SignalNoiseRatio",
    "SSIM": "StructuralSimilarityIndexMeasure", "WER": "WordErrorRate",
    "BinnedAveragePrecision": "AveragePrecision",
    "BinnedPrecisionRecallCurve": "PrecisionRecallCurve",
    "BinnedRecallAtFixedPrecision": "RecallAtFixedPrecision",
}  # fmt: skip


class Metrics:
    """Base class of metrics, which have ``reset``, ``update`` and ``compute``."""

    def __init__(self, metric_name: str) -> None:
        self.name = metric_name

    def to(self, *arguments: Any, **options: Any) -> None:
        """Compute on a device; metrics follow the first batch unless overridden."""


class TMMetrics(Metrics):
    """A metric by name: ``TMMetrics("F1Score", average="macro")``.

    What newer torchmetrics ask for and the shapes tell, the task and the number of classes, is
    found with the first batch unless it is given.
    """

    def __init__(self, metric_name: str, **arguments: Any) -> None:
        known = self.get_tm_avaliable_metrics()
        if metric_name not in known:
            near = did_you_mean(metric_name, known)
            if not near:  # perhaps because torchmetrics cannot be imported, which this raises
                metrics.metric_class(_OLD.get(metric_name, metric_name))
            raise ValueError(f"there is no metric {metric_name!r}{near}")
        super().__init__(metric_name)
        self._kind = metrics.metric_class(_OLD.get(metric_name, metric_name))
        self._arguments = arguments
        if metric_name.startswith("Binned"):
            self._arguments = {"thresholds": 100, **arguments}
        self._metric: Any = None
        self._saved: dict[str, Any] | None = None

    @staticmethod
    def get_tm_avaliable_metrics() -> list[str]:
        """Return all available names, including former ones."""
        found = metrics.available()
        return list(dict.fromkeys([*(old for old, new in _OLD.items() if new in found), *found]))

    def reset(self) -> None:
        """Discard all updates."""
        self._saved = None
        if self._metric is not None:
            self._metric.reset()

    def update(self, *arguments: Any, **options: Any) -> None:
        """Add one batch: outputs and targets, or what the metric takes instead."""
        if self._metric is None:
            self._metric = self._made(arguments[0] if arguments else None)
        self._metric.update(*arguments, **options)

    def compute(self) -> Any:
        """Return the value over all updates, a tensor in most cases; None before the first."""
        value = self._metric.compute() if self._metric is not None else None
        return torch.tensor(value, dtype=torch.float64) if isinstance(value, float) else value

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the metric."""
        if self._metric is None:
            return {}
        count = getattr(self._metric, "_update_count", 0)
        return {"count": count, "state": self._metric.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state, with the next batch if the metric is not built yet."""
        self._saved = state or None
        if self._metric is not None:
            self._take_back()

    def _made(self, outputs: Any) -> Any:
        found: dict[str, Any] = {}
        if self._kind is metrics.Accuracy:
            found = {"threshold": 0.5} if _are_probabilities(outputs) else {}
        elif hasattr(self._kind, "_create_task") or "ClassificationTask" in str(self._kind.__mro__):
            several = isinstance(outputs, Tensor) and outputs.ndim > 1 and outputs.shape[1] > 1
            found = {"task": "multiclass", "num_classes": outputs.shape[1]} if several else {}
            found = found or {"task": "binary"}
        self._metric = self._kind(**{**found, **self._arguments})
        if hasattr(self._metric, "persistent"):
            self._metric.persistent(True)  # torchmetrics leaves what it counted out of its state
            self._metric.to(outputs.device if isinstance(outputs, Tensor) else "cpu")
        self._take_back()
        return self._metric

    def _take_back(self) -> None:
        if self._saved is not None:
            self._metric.load_state_dict(self._saved["state"])
            if hasattr(self._metric, "_update_count"):
                self._metric._update_count = self._saved["count"]
        self._saved = None


def _are_probabilities(outputs: Any) -> bool:
    """Return whether binary outputs are probabilities, not logits."""
    binary = outputs.ndim == 1 or outputs.shape[1] == 1
    return binary and bool(((outputs >= 0) & (outputs <= 1)).all())


def as_number(value: Any) -> Any:
    """Return a tensor of one element as a number, and anything else as it is."""
    return value.item() if isinstance(value, Tensor) and value.numel() == 1 else value


def get_metric_by_name(metric_name: str, metric_impl: str = "TMMetrics", **arguments: Any) -> Any:
    """Return the metric of that name; ``metric_impl`` has only one valid value."""
    if metric_impl != "TMMetrics":
        raise ValueError(f"metrics are made by 'TMMetrics', got {metric_impl!r}")
    return TMMetrics(metric_name, **arguments)


def show_avaliable_metrics() -> dict[str, dict[str, Any]]:
    """Return all available names, by the class that makes these metrics."""
    return {"TMMetrics": {"impl": "pytorch", "names": TMMetrics.get_tm_avaliable_metrics()}}
