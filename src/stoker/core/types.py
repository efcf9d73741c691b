"""The few types that every part of Stoker speaks."""

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
    """What one forward pass gave. Metrics and hooks read this, there is no second forward.

    Args:
        loss: a tensor with one element; None where nothing is trained or judged.
        outputs: what the model returned.
        targets: what it should have returned.
        weight: how many samples (or tokens) are behind the loss; None means the batch size.
        scalars: further numbers of this batch; their means over samples are results of an epoch
            and a validation, under ``train/`` and ``val/``.
    """

    loss: Tensor | None = None
    outputs: Any = None
    targets: Any = None
    weight: float | None = None
    scalars: Mapping[str, Scalar] = field(default_factory=dict)


@runtime_checkable
class Stateful(Protocol):
    """Anything whose state can be saved and given back."""

    def state_dict(self) -> dict[str, Any]:
        """The state as tensors and plain values."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take back what `state_dict` gave."""
        ...
