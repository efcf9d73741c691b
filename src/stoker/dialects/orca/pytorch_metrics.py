"""The metrics that Orca's estimator computes: called with each batch, and read at the end."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from stoker import metrics
from stoker.core import dist

_EPSILON = 1e-7


class PytorchMetric(ABC):
    """A metric over the batches that it is called with."""

    @abstractmethod
    def __call__(self, preds: Any, targets: Any) -> None:
        """Add a batch."""

    @abstractmethod
    def compute(self) -> Any:
        """Return the value over the batches of this process."""


class Summed(PytorchMetric):
    """A metric that is computed from sums over samples, so that it is exact over all processes."""

    def __init__(self) -> None:
        self.sums: Any = 0.0

    def __call__(self, preds: Any, targets: Any) -> None:
        """Add a batch."""
        self.add(*self._terms(preds, targets))

    def add(self, *terms: Any) -> None:
        """Add to the sums."""
        found = [torch.as_tensor(term, dtype=torch.float64) for term in terms]
        self.sums = self.sums + torch.stack([term.to(found[0].device) for term in found])

    def _terms(self, preds: Any, targets: Any) -> tuple[Any, ...]:
        """Return what a batch adds to each sum, by default to a total and to a count."""
        raise NotImplementedError

    def _value(self, sums: Tensor) -> Tensor:
        return sums[0] / sums[1]

    def compute(self) -> Tensor:
        """Return the value over the batches of this process; NaN if there were none."""
        return self._value_of(self.sums)

    def compute_over_processes(self) -> Tensor:
        """Return the value over the batches of all processes, which must all call this."""
        own = self.sums.tolist() if isinstance(self.sums, Tensor) else []
        found = [sums for sums in dist.all_gather_object(own) if sums]
        return self._value_of(torch.tensor(found, dtype=torch.float64).sum(0) if found else 0.0)

    def _value_of(self, sums: Any) -> Tensor:
        return self._value(sums) if isinstance(sums, Tensor) else torch.tensor(float("nan"))


def class_labels(preds: Tensor, targets: Tensor) -> Tensor | None:
    """Return the most probable classes, or None if there is one prediction per target."""
    if preds.ndim != targets.ndim + 1 or preds.shape[-1] == 1:
        return None
    last = preds.shape[:-1] == targets.shape
    return preds.argmax(-1 if last else 1)


def _like(targets: Tensor, preds: Tensor) -> Tensor:
    if preds.numel() != targets.numel():
        raise ValueError(
            f"predictions have the shape {list(preds.shape)} and targets {list(targets.shape)}: "
            "expected the same shape, or one more dimension of classes in the predictions"
        )
    return targets.reshape(preds.shape)


class Accuracy(Summed):
    """How often the most probable class, or a probability rounded to 0 or 1, is the target.

    The ``threshold`` of probabilities is 0.5; an estimator with `BCEWithLogitsLoss` sets it to 0.
    """

    threshold = 0.5

    def _terms(self, preds: Tensor, targets: Tensor) -> tuple[Any, ...]:
        labels = class_labels(preds, targets)
        if labels is None:
            targets = _like(targets, preds)
            labels = (preds >= self.threshold).long() if preds.is_floating_point() else preds
        return (labels == targets).sum(), targets.numel()


class BinaryAccuracy(Summed):
    """How often a probability above the threshold goes with a target of 1."""

    threshold = 0.5

    def __call__(self, preds: Tensor, targets: Tensor, threshold: float | None = None) -> None:
        """Add a batch, with a threshold of its own if one is given."""
        found = preds > (self.threshold if threshold is None else threshold)
        self.add((found == _like(targets, preds)).sum(), targets.numel())


def _mean(name: str, doc: str, terms: Callable[[Tensor, Tensor], tuple[Any, ...]]) -> Any:
    """Return a metric from a function of a batch that returns a sum and a count."""
    about = {"__doc__": doc, "__module__": __name__, "_terms": staticmethod(terms)}
    return type(name, (Summed,), about)


def _per_value(function: Callable[[Tensor, Tensor], Tensor]) -> Any:
    """Return the sum of a function of predictions and targets of the same shape."""
    return lambda p, y: (function(p.double(), _like(y, p)).sum(), y.numel())


def _hits(preds: Tensor, targets: Tensor) -> tuple[Any, ...]:
    hits = preds.argmax(-1) == (targets.squeeze(-1) if preds.ndim == targets.ndim else targets)
    return hits.sum(), hits.numel()


def _one_hot_hits(preds: Tensor, targets: Tensor) -> tuple[Any, ...]:
    return _hits(preds, targets.argmax(-1))


def _top5(preds: Tensor, targets: Tensor) -> tuple[Any, ...]:
    best = preds.topk(5, dim=-1).indices
    return (best == targets.reshape(*best.shape[:-1], 1)).sum(), targets.numel()


def _cross_entropy(preds: Tensor, targets: Tensor) -> tuple[Any, ...]:
    return -(_probabilities(preds).log() * targets).sum(), targets.shape[0]


def _sparse_cross_entropy(preds: Tensor, targets: Tensor) -> tuple[Any, ...]:
    classes = targets.reshape(preds.shape[:-1]).long()
    return _cross_entropy(preds, functional.one_hot(classes, preds.shape[-1]))


def _binary_entropy(preds: Tensor, targets: Tensor) -> Tensor:
    p = _probabilities(preds)
    return -(targets * p.log() + (1 - targets) * (1 - p).log())


def _probabilities(preds: Tensor) -> Tensor:
    return preds.double().clamp(_EPSILON, 1 - _EPSILON)


def _divergence(preds: Tensor, targets: Tensor) -> tuple[Any, ...]:
    p, y = preds.double(), _like(targets, preds)
    return (y * (y / p + _EPSILON).log()).sum(), targets.shape[0]


CategoricalAccuracy = _mean("CategoricalAccuracy", "Hits of one-hot classes.", _one_hot_hits)
SparseCategoricalAccuracy = _mean("SparseCategoricalAccuracy", "Hits of class numbers.", _hits)
Top5Accuracy = _mean("Top5Accuracy", "Hits among the five largest outputs.", _top5)
MSE = _mean("MSE", "The mean squared error.", _per_value(lambda p, y: (p - y).square()))
MAE = _mean("MAE", "The mean absolute error.", _per_value(lambda p, y: (p - y).abs()))
BinaryCrossEntropy = _mean("BinaryCrossEntropy", "Of probabilities.", _per_value(_binary_entropy))
CategoricalCrossEntropy = _mean("CategoricalCrossEntropy", "Of one-hot classes.", _cross_entropy)
SparseCategoricalCrossEntropy = _mean(
    "SparseCategoricalCrossEntropy", "The cross entropy of class numbers.", _sparse_cross_entropy
)
KLDivergence = _mean("KLDivergence", "The divergence of predictions from targets.", _divergence)
Poisson = _mean(
    "Poisson", "The Poisson loss.", _per_value(lambda p, y: p - y * (p + _EPSILON).log())
)


class Confusion(Summed):
    """Counts of predictions of the class 1; with more classes, of all classes together."""

    threshold = 0.5

    def _terms(self, preds: Tensor, targets: Tensor) -> tuple[Any, ...]:
        """Return true and false positives, false negatives, hits, misses, and other classes."""
        labels = class_labels(preds, targets)
        several = labels is not None
        if labels is None:
            targets = _like(targets, preds)
            labels = (preds >= self.threshold).long() if preds.is_floating_point() else preds
            several = not preds.is_floating_point() and bool(labels.max() > 1)
        hit, true, found = labels == targets, targets == 1, labels == 1
        counts = (found & true, found & ~true, ~found & true, hit, ~hit)
        return *(count.sum() for count in counts), int(several)

    def _counts(self, sums: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return true positives, false positives and false negatives."""
        return (sums[3], sums[4], sums[4]) if sums[5] else (sums[0], sums[1], sums[2])


class Precision(Confusion):
    """The fraction of positive predictions that are right; 0 if there are none."""

    def _value(self, sums: Tensor) -> Tensor:
        hits, wrong, _ = self._counts(sums)
        return hits / (hits + wrong).clamp(min=1)


class Recall(Confusion):
    """The fraction of positive targets that were found; 0 if there are none."""

    def _value(self, sums: Tensor) -> Tensor:
        hits, _, missed = self._counts(sums)
        return hits / (hits + missed).clamp(min=1)


class F1Score(Confusion):
    """The harmonic mean of precision and recall."""

    def _value(self, sums: Tensor) -> Tensor:
        hits, wrong, missed = self._counts(sums)
        return 2 * hits / (2 * hits + wrong + missed).clamp(min=1)


class Torchmetric(PytorchMetric):
    """A metric of torchmetrics for probabilities of targets that are 0 or 1."""

    target = ""

    def __init__(self, **options: Any) -> None:
        self.metric: Any = metrics.get(self.target, sync_on_compute=False, **options)

    def __call__(self, preds: Tensor, targets: Tensor) -> None:
        """Add a batch."""
        self.metric.to(preds.device).update(preds, _like(targets, preds).long())

    def compute(self) -> Any:
        """Return the value over the batches of this process."""
        return self.metric.compute()

    def compute_over_processes(self) -> Any:
        """Return the value over the batches of all processes."""
        with self.metric.sync_context(should_sync=dist.world_size() > 1):
            self.metric._computed = None
            return self.metric.compute()


class AUROC(Torchmetric):
    """The area under the ROC curve."""

    target = "BinaryAUROC"


class ROC(Torchmetric):
    """The ROC curve: false and true positive rates, and their thresholds."""

    target = "BinaryROC"


class PrecisionRecallCurve(Torchmetric):
    """Precision, recall, and their thresholds."""

    target = "BinaryPrecisionRecallCurve"
