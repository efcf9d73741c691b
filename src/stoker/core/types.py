"""Types used throughout Stoker."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias, runtime_checkable

from torch import Tensor

Batch: TypeAlias = Any
"""What a loader yields: a tensor, a pair ``(inputs, targets)``, or a dict."""

Scalar: TypeAlias = float | Tensor
"""A number, or a tensor with one element that has not been read back yet."""


@dataclass(slots=True)
class Output:
    """The result of one forward pass, which metrics and hooks read.

    Args:
        loss: a tensor with one element, None if there is no loss.
        outputs: the outputs of the model.
        targets: the targets.
        weight: the number of samples (or tokens) in the loss; None means the batch size.
        scalars: further values to log; their means over samples become results of the epoch or
            validation, under ``train/`` and ``val/``.
    """

    loss: Tensor | None = None
    outputs: Any = None
    targets: Any = None
    weight: float | None = None
    scalars: Mapping[str, Scalar] = field(default_factory=dict)


@runtime_checkable
class Stateful(Protocol):
    """Anything whose state can be saved and restored."""

    def state_dict(self) -> dict[str, Any]:
        """Return the state as tensors and plain values."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        ...
