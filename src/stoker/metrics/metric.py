"""`Metric`, the protocol of metrics; `Mean`, an exact one; `MetricCollection`, several."""

from collections.abc import Callable, Mapping
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from stoker.core import dist
from stoker.core.tree import as_floats, concatenate, map_tensors
from stoker.core.types import Scalar

_MAX_PENDING = 256
"""How many updates are kept before they are summed, to bound memory at little cost per step."""


@runtime_checkable
class Metric(Protocol):
    """The protocol of metrics: ``reset``, ``update``, ``compute``.

    Any torchmetrics metric implements it. `compute` may be called at any time and returns the value
    over all updates since `reset`. With several processes it is the value over all ranks, and
    every rank must call it.
    """

    def reset(self) -> None:
        """Discard all updates."""
        ...

    def update(self, outputs: Any, targets: Any, /) -> None:
        """Add one batch of outputs and targets."""
        ...

    def compute(self) -> Any:
        """Return the value over all updates since `reset`."""
        ...


class Mean:
    """A mean over samples.

        mean.update(batch_loss, batch_size)

    Values may be tensors. They are summed on their device, in double precision where the device
    supports it, and are not read back before `compute`. The mean of no updates is NaN.
    """

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Discard all updates."""
        self._sum: Scalar = 0.0
        self._weight = 0.0
        self._values: list[Scalar] = []
        self._weights: list[float] = []

    @property
    def empty(self) -> bool:
        """Whether this process has made no updates since `reset`."""
        return not self._values and not self._weight

    def update(self, value: Scalar, weight: float = 1.0, /) -> None:
        """Add the mean of a batch of ``weight`` samples; weight 0 is ignored."""
        if not weight:
            return
        self._values.append(value)
        self._weights.append(weight)
        if len(self._values) >= _MAX_PENDING:
            self._sum, self._weight = self._totals()
            self._values.clear()
            self._weights.clear()

    def compute(self) -> float:
        """Return the mean over all samples of all processes."""
        total, weight = self._totals()
        total, weight = dist.sum_observed(float(total), weight)
        return total / weight if weight else float("nan")

    def state_dict(self) -> dict[str, Any]:
        """Return the sums and the pending updates, so that a resumed run gets the same bits."""
        return {
            "sum": float(self._sum),
            "weight": self._weight,
            "values": as_floats(self._values),
            "weights": list(self._weights),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the sums and the pending updates."""
        self._sum, self._weight = state["sum"], state["weight"]
        self._values, self._weights = list(state["values"]), list(state["weights"])

    def _totals(self) -> tuple[Scalar, float]:
        if not self._values:
            return self._sum, self._weight
        values = _as_one_tensor(self._values)
        weights = torch.tensor(self._weights, dtype=values.dtype, device=values.device)
        return self._sum + (values * weights).sum(), self._weight + sum(self._weights)


def _as_one_tensor(values: list[Scalar]) -> Tensor:
    """Stack the values on their device; numbers and tensors give the same bits."""
    tensors = [value for value in values if isinstance(value, Tensor)]
    device = tensors[0].device if tensors else torch.device("cpu")
    dtype = torch.float32 if device.type == "mps" else torch.float64  # MPS has no float64
    if len(tensors) == len(values) and all(value.ndim == 0 for value in tensors):
        return torch.stack(tensors).to(dtype)
    parts = [torch.as_tensor(value, dtype=dtype, device=device).reshape(()) for value in values]
    return torch.stack(parts)


class FunctionMetric:
    """A metric from a plain function of all outputs and targets, which are kept until the end.

    Args:
        function: returns a number, or several by name.
    """

    def __init__(self, function: Callable[[Any, Any], Any]) -> None:
        self.function = function
        self._kept: list[Any] = []

    def reset(self) -> None:
        """Forget the batches."""
        self._kept = []

    def update(self, outputs: Any, targets: Any, /) -> None:
        """Keep a batch, on the CPU."""
        self._kept.append(map_tensors(Tensor.cpu, (outputs, targets)))

    def compute(self) -> Any:
        """Call the function with the batches of all processes, in the order of ranks."""
        kept = [batch for of_rank in dist.gather_observed(self._kept) for batch in of_rank]
        outputs, targets = zip(*kept, strict=True) if kept else ((), ())
        return self.function(concatenate(list(outputs)), concatenate(list(targets)))

    def state_dict(self) -> dict[str, Any]:
        """Return the batches so far."""
        return {"kept": [list(batch) for batch in self._kept]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the batches so far."""
        self._kept = [tuple(batch) for batch in state["kept"]]


def _of_head(head: str, outputs: Any, targets: Any) -> tuple[Any, Any]:
    for name, values in (("outputs", outputs), ("targets", targets)):
        if not isinstance(values, Mapping) or head not in values:
            found = ", ".join(map(str, values)) if isinstance(values, Mapping) else type(values)
            raise ValueError(
                f"the {name} have no head {head!r}: expected a dict by head, got {found}"
            )
    return outputs[head], targets[head]


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

    def update_all(self, outputs: Any, targets: Any, heads: Mapping[str, str] = {}) -> None:
        """Update all metrics with one batch, or those of a head with its part of the batch."""
        for name, metric in self.items():
            if name in heads:
                metric.update(*_of_head(heads[name], outputs, targets))
            else:
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
