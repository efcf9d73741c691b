"""`Accuracy`: exact, and without synchronizing with the device on each update."""

from typing import Any

import torch
from torch import Tensor

from stoker.core import dist

_MAX_BATCHES, _MAX_ELEMENTS = 256, 1_000_000  # pending updates, to bound memory


class Accuracy:
    """The fraction of samples whose target is among the ``topk`` largest outputs.

    Outputs are scores per class, of shape ``(N, C)``, ``(N, C, …)`` as for cross entropy, or
    ``(N, …, C)``. Outputs of shape ``(N,)`` or ``(N, 1)`` are binary logits. Targets are class
    indices, or class probabilities of the same shape as the outputs. For several labels per sample
    use torchmetrics. Counts are integers, so the result is exact for any number of samples.

    Args:
        topk: How many of the largest outputs count as a hit.
        threshold: The decision threshold of binary outputs; 0.5 if they are probabilities.
        ignore_index: A target to ignore.
        class_dim: The dimension of the classes, if the shapes are ambiguous.
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
        """Discard all updates."""
        self._correct: Tensor | int = 0
        self._total: Tensor | int = 0
        self._pending: list[tuple[Tensor, Tensor | None]] = []
        self._elements = 0

    def update(self, outputs: Tensor, targets: Tensor, /) -> None:
        """Add one batch. Hits are counted later, for many batches at once."""
        shape = outputs.shape
        if len(shape) == 2 and shape[:1] == targets.shape and shape[1] > 1:  # the common case
            hits = self._among_best(outputs.detach(), targets, 1)
        else:
            hits, targets = self._hits(outputs.detach(), targets)
        counted = None if self.ignore_index is None else targets != self.ignore_index
        self._pending.append((hits, counted))
        self._elements += hits.numel()
        if len(self._pending) >= _MAX_BATCHES or self._elements >= _MAX_ELEMENTS:
            self._count()

    def compute(self) -> float:
        """Return the accuracy over all processes, or NaN if there are no samples."""
        self._count()
        correct, total = dist.sum_observed(int(self._correct), int(self._total))
        return correct / total if total else float("nan")

    def state_dict(self) -> dict[str, Any]:
        """Return the counts of hits and samples."""
        self._count()
        return {"correct": int(self._correct), "total": int(self._total)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the counts of hits and samples."""
        self.reset()
        self._correct, self._total = state["correct"], state["total"]

    def _count(self) -> None:
        """Count pending batches on their device; integer sums do not depend on the grouping."""
        if not self._pending:
            return
        hits = torch.cat([hits.flatten() for hits, _ in self._pending])
        if self.ignore_index is None:
            self._total = self._total + hits.numel()
        else:
            counted = torch.cat([c.flatten() for _, c in self._pending if c is not None])
            hits = hits & counted
            self._total = self._total + counted.sum()
        self._correct = self._correct + hits.sum()
        self._pending, self._elements = [], 0

    def _hits(self, outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Return whether each target was hit, and the targets as class indices."""
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
        """Check once that targets shaped like outputs are class probabilities."""
        if self._rows_checked:
            return
        self._rows_checked = True
        sums = targets.sum(-1, dtype=torch.float64)
        if not bool(torch.allclose(sums, torch.ones_like(sums), atol=1e-3)):
            raise ValueError(
                f"accuracy got targets of shape {list(targets.shape)} whose rows do not "
                "sum to 1, so they are not class probabilities: for several labels per sample use "
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
        f"{list(targets.shape)}; expected the same shape apart from the class dimension"
    )
