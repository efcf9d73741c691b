"""Trace what is computed from blank tensors, which stand for values of other stages."""

from collections.abc import Iterable, Mapping
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

_ONLY_SHAPE = frozenset(
    {
        *("empty_like", "zeros_like", "ones_like", "full_like", "rand_like", "randn_like"),
        *("new_empty", "new_zeros", "new_ones", "new_full", "new_empty_strided"),
    }
)
"""Operations that read the shape of a tensor and not its values."""


def memory_of(tensor: Tensor) -> int:
    """Return a number that a tensor and its views share."""
    try:
        return int(tensor.untyped_storage()._cdata)
    except (NotImplementedError, RuntimeError):  # sparse, or within vmap
        return id(tensor)


class PlaceholderTrace(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Within this context, notes which tensors depend on the values of blank ones.

    Attributes:
        read: the name of a module whose blank output was read as a number; None if there is none.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.read: str | None = None
        self._names: dict[int, str] = {}
        self._weights: set[int] = set()
        self._alive: list[Any] = []  # so that no other tensor gets the same memory

    def add(self, tensor: Tensor, name: str) -> None:
        """Note that a tensor depends on what the module of that name returns."""
        self._alive.append(tensor)
        self._names[memory_of(tensor)] = name

    def add_weight(self, tensor: Tensor, name: str) -> None:
        """Note that a tensor stands for a weight of the module of that name."""
        self.add(tensor, name)
        self._weights.add(memory_of(tensor))

    def source_of(self, found: Iterable[Any]) -> str | None:
        """Return the module that the first dependent tensor depends on; None if there is none."""
        names = (self._names.get(memory_of(value)) for value in found if isinstance(value, Tensor))
        return next((name for name in names if name is not None), None)

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Run an operation; its results depend on what its arguments depend on.

        Raises:
            ValueError: it changes a weight of another stage.
        """
        source = self.source_of(tree_leaves((args, kwargs)))
        schema = getattr(func, "_schema", None)  # operations of a higher order have none
        changed = args[:1] if schema is not None and schema.is_mutable else ()
        if any(isinstance(one, Tensor) and memory_of(one) in self._weights for one in changed):
            raise ValueError(
                f"the model changes a weight of {source!r} when it runs, which is in another stage "
                "of the pipeline: use another layout"
            )
        result = func(*args, **(kwargs or {}))
        name = getattr(func, "_opname", "")
        if source is None or name in _ONLY_SHAPE:
            return result
        if name == "_local_scalar_dense":
            self.read = source
        for value in tree_leaves((result, changed)):
            if isinstance(value, Tensor):
                self.add(value, source)
        return result
