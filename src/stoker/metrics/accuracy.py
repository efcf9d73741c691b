"""Accuracy, exact and without waiting for the device."""

from typing import Any

import torch
from torch import Tensor

from stoker.core import dist

_BATCHES, _ELEMENTS = 256, 1_000_000  # how many may wait to be counted; bounds memory


class Accuracy:
    """The share of samples whose target is among the ``topk`` largest outputs.

    Outputs are scores per class, ``(N, C)``, ``(N, C, …)`` as for cross entropy, or ``(N, …, C)``;
    scores without a class dimension, ``(N,)`` or ``(N, 1)``, are logits of a yes or no, or
    probabilities with ``threshold=0.5``. Targets are class indices, or one row of class
    probabilities per sample; for several labels a sample take torchmetrics. Counts are whole
    numbers, so the result is exact for any number of samples. Targets equal to ``ignore_index``
    do not count. ``class_dim`` says which dimension holds the classes where shapes do not tell.
    """

    def __init__(
        self,
        topk: int = 1,
        *,
        threshold: float = 0.0,
        ignore_index: int | None = None,
        class_dim: int | None = None,
    ) -> None:
        if topk < 1:
            raise ValueError(f"topk must be at least 1, got {topk}")
        self.topk = topk
        self.ignore_index = ignore_index
        self.class_dim = class_dim
        self.threshold = threshold
        self._rows_checked = False
        self.reset()

    def reset(self) -> None:
        """Forget all updates."""
        self._correct: Tensor | int = 0
        self._total: Tensor | int = 0
        self._waiting: list[tuple[Tensor, Tensor | None]] = []
        self._elements = 0

    def update(self, outputs: Tensor, targets: Tensor, /) -> None:
        """Take in one batch. Hits are counted later, many batches at once."""
        shape = outputs.shape
        if len(shape) == 2 and shape[:1] == targets.shape and shape[1] > 1:  # the common case
            hits = self._among_best(outputs.detach(), targets, 1)
        else:
            hits, targets = self._hits(outputs.detach(), targets)
        counted = None if self.ignore_index is None else targets != self.ignore_index
        self._waiting.append((hits, counted))
        self._elements += hits.numel()
        if len(self._waiting) >= _BATCHES or self._elements >= _ELEMENTS:
            self._count()

    def compute(self) -> float:
        """Hits over samples, of all processes; NaN where there are no samples."""
        self._count()
        correct, total = dist.all_reduce_sum(int(self._correct), int(self._total))
        return correct / total if total else float("nan")

    def state_dict(self) -> dict[str, Any]:
        """The two counts."""
        self._count()
        return {"correct": int(self._correct), "total": int(self._total)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take back what `state_dict` gave."""
        self.reset()
        self._correct, self._total = state["correct"], state["total"]

    def _count(self) -> None:
        """Add up what waits, on its device; whole numbers, so it does not matter when."""
        if not self._waiting:
            return
        hits = torch.cat([hits.flatten() for hits, _ in self._waiting])
        if self.ignore_index is None:
            self._total = self._total + hits.numel()
        else:
            counted = torch.cat([c.flatten() for _, c in self._waiting if c is not None])
            hits = hits & counted
            self._total = self._total + counted.sum()
        self._correct = self._correct + hits.sum()
        self._waiting, self._elements = [], 0

    def _hits(self, outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """For each target whether it was hit, and the targets as class indices."""
        if outputs.shape == targets.shape and outputs.ndim > 1 and outputs.shape[-1] > 1:
            self._check_rows(targets)
            targets = targets.argmax(-1)
        if outputs.ndim == targets.ndim + 1 and outputs.shape[1] > 1:
            dim = self.class_dim if self.class_dim is not None else _class_dim(outputs, targets)
            return self._among_best(outputs, targets, dim), targets
        if self.topk == 1 and outputs.numel() == targets.numel():
            targets = targets.reshape(outputs.shape)
            return (outputs > self.threshold) == (targets > 0.5), targets
        raise ValueError(
            f"accuracy got outputs of shape {list(outputs.shape)} and targets of shape "
            f"{list(targets.shape)}; expected outputs (N, C) and targets (N,)"
        )

    def _among_best(self, outputs: Tensor, targets: Tensor, dim: int) -> Tensor:
        if self.topk == 1:
            return outputs.argmax(dim) == targets
        best = outputs.topk(self.topk, dim, sorted=False).indices
        return (best == targets.unsqueeze(dim)).any(dim)

    def _check_rows(self, targets: Tensor) -> None:
        """Targets in the shape of outputs are probabilities, or it is no question of one class."""
        if self._rows_checked:
            return
        self._rows_checked = True
        sums = targets.sum(-1, dtype=torch.float64)
        if not bool(torch.allclose(sums, torch.ones_like(sums), atol=1e-3)):
            raise ValueError(
                f"accuracy got targets of shape {list(targets.shape)} whose rows are no "
                "probabilities of one class each: for several labels a sample use "
                "metrics.get('MultilabelAccuracy', num_labels=…)"
            )


def _class_dim(outputs: Tensor, targets: Tensor) -> int:
    second = outputs.shape[:1] + outputs.shape[2:] == targets.shape
    last = outputs.shape[:-1] == targets.shape
    if second and last and outputs.ndim > 2:
        raise ValueError(
            f"accuracy got outputs of shape {list(outputs.shape)} and cannot tell which dimension "
            "holds the classes: use Accuracy(class_dim=1) or Accuracy(class_dim=-1)"
        )
    if second or last:
        return 1 if second else -1
    raise ValueError(
        f"accuracy got outputs of shape {list(outputs.shape)} and targets of shape "
        f"{list(targets.shape)}; apart from the classes they must have the same shape"
    )
