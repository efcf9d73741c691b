"""The metrics that Orca's estimator computes: called with each batch, and read at the end."""

from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from stoker import metrics
from stoker.core import dist

__all__ = [
    "AUROC", "MAE", "MSE", "ROC", "Accuracy", "BinaryAccuracy", "BinaryCrossEntropy",
    "CategoricalAccuracy", "CategoricalCrossEntropy", "F1Score", "KLDivergence", "Poisson",
    "Precision", "PrecisionRecallCurve", "PytorchMetric", "Recall", "SparseCategoricalAccuracy",
    "SparseCategoricalCrossEntropy", "Top5Accuracy",
]  # fmt: skip

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
        self.add(*self.terms(preds, targets))

    def add(self, *terms: Any) -> None:
        """Add to the sums."""
        found = [torch.as_tensor(term, dtype=torch.float64) for term in terms]
        self.sums = self.sums + torch.stack([term.to(found[0].device) for term in found])

    @abstractmethod
    def terms(self, preds: Any, targets: Any) -> tuple[Any, ...]:
        """Return what a batch adds to each sum, by default to a total and to a count."""

    def value(self, sums: Tensor) -> Tensor:
        """Return the value for the sums, by default their mean."""
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
        return self.value(sums) if isinstance(sums, Tensor) else torch.tensor(float("nan"))


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

    def terms(self, preds: Tensor, targets: Tensor) -> tuple[Any, ...]:
        """Return the hits, and the number of targets."""
        labels = class_labels(preds, targets)
        if labels is None:
            targets = _like(targets, preds)
            labels = (preds >= self.threshold).long() if preds.is_floating_point() else preds
        return (labels == targets).sum(), targets.numel()


class SparseCategoricalAccuracy(Summed):
    """How often the largest output is that of the class, which is a number."""

    def terms(self, preds: Tensor, targets: Tensor) -> tuple[Any, ...]:
        """Return the hits, and the number of targets."""
        targets = targets.squeeze(-1) if preds.ndim == targets.ndim else targets
        return (preds.argmax(-1) == targets).sum(), targets.numel()


class CategoricalAccuracy(Summed):
    """How often the largest output is that of the class, which is one-hot encoded."""

    def terms(self, preds: Tensor, targets: Tensor) -> tuple[Any, ...]:
        """Return the hits, and the number of targets."""
        hits = preds.argmax(-1) == targets.argmax(-1)
        return hits.sum(), hits.numel()


class BinaryAccuracy(Summed):
    """How often a probability above the threshold goes with a target of 1."""

    threshold = 0.5

    def __call__(self, preds: Tensor, targets: Tensor, threshold: float | None = None) -> None:
        """Add a batch, with a threshold of its own if one is given."""
        self.add(*self.terms(preds, targets, threshold))

    def terms(
        self, preds: Tensor, targets: Tensor, threshold: float | None = None
    ) -> tuple[Any, ...]:
        """Return the hits, and the number of targets."""
        found = preds > (self.threshold if threshold is None else threshold)
        return (found == _like(targets, preds)).sum(), targets.numel()


class Top5Accuracy(Summed):
    """How often the class is among the five largest outputs."""

    def terms(self, preds: Tensor, targets: Tensor) -> tuple[Any, ...]:
        """Return the hits, and the number of targets."""
        best = preds.topk(5, dim=-1).indices
        return (best == targets.reshape(*best.shape[:-1], 1)).sum(), targets.numel()


class MSE(Summed):
    """The mean squared error."""

    def terms(self, preds: Tensor, targets: Tensor) -> tuple[Any, ...]:
        """Return the squared errors, and the number of targets."""
        return (preds - _like(targets, preds)).double().square().sum(), targets.numel()


class MAE(Summed):
    """The mean absolute error."""

    def terms(self, preds: Tensor, targets: Tensor) -> tuple[Any, ...]:
        """Return the absolute errors, and the number of targets."""
        return (preds - _like(targets, preds)).double().abs().sum(), targets.numel()


def _probabilities(preds: Tensor) -> Tensor:
    return preds.double().clamp(_EPSILON, 1 - _EPSILON)


class BinaryCrossEntropy(Summed):
    """The cross entropy of probabilities of targets that are 0 or 1."""

    def terms(self, preds: Tensor, targets: Tensor) -> tuple[Any, ...]:
        """Return the cross entropy, and the number of targets."""
        p, y = _probabilities(preds), _like(targets, preds)
        return -(y * p.log() + (1 - y) * (1 - p).log()).sum(), targets.numel()


class CategoricalCrossEntropy(Summed):
    """The cross entropy of probabilities of classes that are one-hot encoded."""

    def terms(self, preds: Tensor, targets: Tensor) -> tuple[Any, ...]:
        """Return the cross entropy, and the number of samples."""
        return -(_probabilities(preds).log() * targets).sum(), targets.shape[0]


class SparseCategoricalCrossEntropy(CategoricalCrossEntropy):
    """The cross entropy of probabilities of classes that are numbers."""

    def terms(self, preds: Tensor, targets: Tensor) -> tuple[Any, ...]:
        """Return the cross entropy, and the number of samples."""
        classes = targets.reshape(preds.shape[:-1]).long()
        return super().terms(preds, functional.one_hot(classes, preds.shape[-1]))


class KLDivergence(Summed):
    """The Kullback-Leibler divergence of predictions from targets."""

    def terms(self, preds: Tensor, targets: Tensor) -> tuple[Any, ...]:
        """Return the divergence, and the number of samples."""
        p, y = preds.double(), _like(targets, preds)
        return (y * (y / p + _EPSILON).log()).sum(), targets.shape[0]


class Poisson(Summed):
    """The Poisson loss."""

    def terms(self, preds: Tensor, targets: Tensor) -> tuple[Any, ...]:
        """Return the loss, and the number of targets."""
        p, y = preds.double(), _like(targets, preds)
        return (p - y * (p + _EPSILON).log()).sum(), targets.numel()


class Confusion(Summed):
    """Counts of predictions of the class 1; with more classes, of all classes together."""

    threshold = 0.5

    def terms(self, preds: Tensor, targets: Tensor) -> tuple[Any, ...]:
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

    def counts(self, sums: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return true positives, false positives and false negatives."""
        return (sums[3], sums[4], sums[4]) if sums[5] else (sums[0], sums[1], sums[2])


class Precision(Confusion):
    """The fraction of positive predictions that are right."""

    def value(self, sums: Tensor) -> Tensor:
        """Return the value for the sums; 0 if nothing was predicted."""
        hits, wrong, _ = self.counts(sums)
        return hits / (hits + wrong).clamp(min=1)


class Recall(Confusion):
    """The fraction of positive targets that were found."""

    def value(self, sums: Tensor) -> Tensor:
        """Return the value for the sums; 0 if there are no positive targets."""
        hits, _, missed = self.counts(sums)
        return hits / (hits + missed).clamp(min=1)


class F1Score(Confusion):
    """The harmonic mean of precision and recall."""

    def value(self, sums: Tensor) -> Tensor:
        """Return the value for the sums; 0 if nothing was found."""
        hits, wrong, missed = self.counts(sums)
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
        """Return the value over the batches of all processes, which must all call this."""
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
