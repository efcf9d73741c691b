"""The metrics of Orca, which build those of `pytorch_metrics` for each pass over the data."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from stoker import metrics
from stoker.core import dist
from stoker.core.tree import batch_size
from stoker.dialects.orca import pytorch_metrics


class Metric(ABC):
    """A metric of an estimator. Yours builds an object that is called with each batch."""

    def get_metric(self, backend: str = "pytorch") -> Any:
        """Return a new metric for a pass over the data."""
        if backend != "pytorch":
            raise ValueError(f"the backend of a metric is 'pytorch', got {backend!r}")
        return self.get_pytorch_metric()

    def get_pytorch_metric(self) -> Any:
        """Return an object to call with the outputs and targets of each batch."""
        raise NotImplementedError(f"{type(self).__name__} has no get_pytorch_metric()")

    @abstractmethod
    def get_name(self) -> str:
        """Return the name of the result."""


def _as_metrics(given: Any) -> list[Metric]:
    found = []
    for one in _listed(given):
        if not isinstance(one, Metric) and (isinstance(one, type) or not callable(one)):
            what = f"the class {one.__name__}" if isinstance(one, type) else type(one).__name__
            raise TypeError(f"metrics hold {what}, expected an Orca metric or a function")
        found.append(one if isinstance(one, Metric) else CustomizedMetric(one))
    return found


class CustomizedMetric(Metric):
    """The mean of a function of outputs and targets, with each batch weighted by its samples."""

    def __init__(self, compute_function: Callable[[Any, Any], Any]) -> None:
        self.compute_function = compute_function

    def get_pytorch_metric(self) -> Any:
        """Return a mean of the function's values."""
        return _MeanOfFunction(self.compute_function)

    def get_name(self) -> str:
        """Return the name of the function."""
        function: Any = self.compute_function
        return str(getattr(function, "__name__", type(function).__name__))


class _MeanOfFunction(pytorch_metrics.Summed):
    def __init__(self, function: Callable[[Any, Any], Any]) -> None:
        super().__init__()
        self._function = function

    def _terms(self, preds: Any, targets: Any) -> tuple[Any, ...]:
        count = batch_size(targets)
        return torch.as_tensor(self._function(preds, targets)) * count, count


class _OfSameName(Metric):
    """A metric whose implementation has its name."""

    def get_pytorch_metric(self) -> Any:
        """Return a new metric."""
        return getattr(pytorch_metrics, type(self).__name__)()

    def get_name(self) -> str:
        """Return the name of the class."""
        return type(self).__name__


class Accuracy(_OfSameName):
    """How often the most probable class, or a probability rounded to 0 or 1, is the target."""

    def __init__(self, zero_based_label: bool = True) -> None:
        if not zero_based_label:
            raise ValueError("zero_based_label=False: classes are counted from 0, subtract 1")


class Top5Accuracy(Accuracy):
    """How often the class is among the five largest outputs."""


class AUC(_OfSameName):
    """The area under the ROC curve: exact, or with ``threshold_num`` thresholds."""

    def __init__(self, threshold_num: int | None = None) -> None:
        self.threshold_num = threshold_num

    def get_pytorch_metric(self) -> Any:
        """Return a new metric."""
        return pytorch_metrics.AUROC(thresholds=self.threshold_num)


def _like(implementation: type) -> Any:
    """Return the metric that builds an implementation and has its name."""
    about = {"__doc__": implementation.__doc__, "__module__": __name__}
    return type(implementation.__name__, (_OfSameName,), about)


BinaryAccuracy = _like(pytorch_metrics.BinaryAccuracy)
BinaryCrossEntropy = _like(pytorch_metrics.BinaryCrossEntropy)
CategoricalAccuracy = _like(pytorch_metrics.CategoricalAccuracy)
CategoricalCrossEntropy = _like(pytorch_metrics.CategoricalCrossEntropy)
F1Score = _like(pytorch_metrics.F1Score)
KLDivergence = _like(pytorch_metrics.KLDivergence)
MAE = _like(pytorch_metrics.MAE)
MSE = _like(pytorch_metrics.MSE)
Poisson = _like(pytorch_metrics.Poisson)
Precision = _like(pytorch_metrics.Precision)
PrecisionRecallCurve = _like(pytorch_metrics.PrecisionRecallCurve)
ROC = _like(pytorch_metrics.ROC)
Recall = _like(pytorch_metrics.Recall)
SparseCategoricalAccuracy = _like(pytorch_metrics.SparseCategoricalAccuracy)
SparseCategoricalCrossEntropy = _like(pytorch_metrics.SparseCategoricalCrossEntropy)


class MetricOfRun:
    """An Orca metric in a run of Stoker: reset before each pass, and computed over all processes.

    The criterion shows whether outputs are probabilities or logits.
    """

    def __init__(self, metric: Metric, criterion: Any) -> None:
        self._metric, self._logits = metric, isinstance(criterion, nn.BCEWithLogitsLoss)
        self.value: Any = None
        """The value of the last pass over all processes."""
        self.reset()

    def reset(self) -> None:
        """Begin a pass."""
        self.of_process: Any = self._metric.get_metric()
        self._samples = 0
        if self._logits and hasattr(self.of_process, "threshold"):
            self.of_process.threshold = 0.0

    def update(self, outputs: Any, targets: Any, /) -> None:
        """Add a batch."""
        self._samples += batch_size(targets)
        self.of_process(outputs, targets)

    def compute(self) -> Any:
        """Return the value over all processes: a number, or nothing for a curve."""
        exact = getattr(self.of_process, "compute_over_processes", None)
        self.value = exact() if exact is not None else self._mean_over_processes()
        is_number = not isinstance(self.value, Tensor | tuple | list | dict)
        return self.value if is_number or _is_scalar(self.value) else {}

    def _mean_over_processes(self) -> Any:
        """Return the mean of the processes' values, weighted by their samples."""
        value = self.of_process.compute() if self._samples else None
        found = [(v, n) for v, n in dist.all_gather_object((value, self._samples)) if n]
        if len(found) > 1 and all(isinstance(v, float) or _is_scalar(v) for v, _ in found):
            return sum(v * n for v, n in found) / sum(n for _, n in found)
        return found[0][0] if found else float("nan")


def _is_scalar(value: Any) -> bool:
    return isinstance(value, Tensor) and value.numel() == 1


def metrics_of_run(given: Any, criterion: Any) -> dict[str, Any]:
    """Return metrics by result name, from Orca's, functions, torchmetrics, names, or a mapping."""
    pairs = given.items() if isinstance(given, dict) else ((None, m) for m in _listed(given))
    found: dict[str, Any] = {}
    for name, one in pairs:
        if isinstance(one, str | metrics.Metric) and not isinstance(one, type):
            default = one if isinstance(one, str) else type(one).__name__
            found[name or default] = metrics.get(one) if isinstance(one, str) else one
        else:
            (metric,) = _as_metrics(one)
            found[name or metric.get_name()] = MetricOfRun(metric, criterion)
    return found


def _listed(given: Any) -> list[Any]:
    return list(given) if isinstance(given, list | tuple) else [] if given is None else [given]
