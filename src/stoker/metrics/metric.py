"""`Metric`, and the mean that all right numbers are made of."""

from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from stoker.core import dist
from stoker.core.tree import as_floats
from stoker.core.types import Scalar

_FOLD = (
    256  # readings kept apart before they are added up; bounds memory, spares an addition a step
)


@runtime_checkable
class Metric(Protocol):
    """A number gathered over batches: ``reset``, ``update``, ``compute``.

    Any torchmetrics metric is one. `compute` may be called at any time and any number of times
    and gives the value over all updates since `reset`; with several processes it is the value
    over all of them, and every process must call it.
    """

    def reset(self) -> None:
        """Forget all updates."""
        ...

    def update(self, outputs: Any, targets: Any, /) -> None:
        """Take in one batch: what the model gave, and what it should have given."""
        ...

    def compute(self) -> Any:
        """The value so far."""
        ...


class Mean:
    """A mean over samples: ``update(value, weight)`` with the mean of a batch and its size.

    Values may be tensors; they are added up on their device, in double precision where it has
    that, and nothing is read back before `compute`. Without any update it is NaN.
    """

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Forget all updates."""
        self._sum: Scalar = 0.0
        self._weight = 0.0
        self._values: list[Scalar] = []
        self._weights: list[float] = []

    @property
    def empty(self) -> bool:
        """Whether this process has taken in nothing since `reset`."""
        return not self._values and not self._weight

    def update(self, value: Scalar, weight: float = 1.0, /) -> None:
        """Take in the mean of one batch, which counts ``weight`` times; 0 counts for nothing."""
        if not weight:
            return
        self._values.append(value)
        self._weights.append(weight)
        if len(self._values) >= _FOLD:
            self._sum, self._weight = self._totals()
            self._values.clear()
            self._weights.clear()

    def compute(self) -> float:
        """The mean over all samples of all processes."""
        total, weight = self._totals()
        total, weight = dist.all_reduce_sum(float(total), weight)
        return total / weight if weight else float("nan")

    def state_dict(self) -> dict[str, Any]:
        """The sums and what is not added up yet, so that going on gives the same bits."""
        return {
            "sum": float(self._sum),
            "weight": self._weight,
            "values": as_floats(self._values),
            "weights": list(self._weights),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take back what `state_dict` gave."""
        self._sum, self._weight = state["sum"], state["weight"]
        self._values, self._weights = list(state["values"]), list(state["weights"])

    def _totals(self) -> tuple[Scalar, float]:
        if not self._values:
            return self._sum, self._weight
        values = _as_one_tensor(self._values)
        weights = torch.tensor(self._weights, dtype=values.dtype, device=values.device)
        return self._sum + (values * weights).sum(), self._weight + sum(self._weights)


def _as_one_tensor(values: list[Scalar]) -> Tensor:
    """The values side by side on their device, in the same bits whether numbers or tensors."""
    tensors = [value for value in values if isinstance(value, Tensor)]
    device = tensors[0].device if tensors else torch.device("cpu")
    dtype = torch.float32 if device.type == "mps" else torch.float64  # MPS has no doubles
    if len(tensors) == len(values) and all(value.ndim == 0 for value in tensors):
        return torch.stack(tensors).to(dtype)
    parts = [torch.as_tensor(value, dtype=dtype, device=device).reshape(()) for value in values]
    return torch.stack(parts)
