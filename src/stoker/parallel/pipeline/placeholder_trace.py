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


class PlaceholderTrace(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Within this context, notes which tensors depend on the values of blank ones.

    Attributes:
        read: the name of a module whose blank output was read as a number; None if there is none.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.read: str | None = None
        self._names: dict[int, str] = {}
        self._alive: list[Any] = []  # so that no other storage gets the same address

    def add(self, tensor: Tensor, name: str) -> None:
        """Note that a tensor depends on what the module of that name returns."""
        storage = tensor.untyped_storage()
        self._alive.append(storage)
        self._names[storage._cdata] = name

    def source_of(self, found: Iterable[Any]) -> str | None:
        """Return the module that the first dependent tensor depends on; None if there is none."""
        names = (
            self._names.get(value.untyped_storage()._cdata)
            for value in found
            if isinstance(value, Tensor)
        )
        return next((name for name in names if name is not None), None)

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Run an operation; its results depend on what its arguments depend on."""
        result = func(*args, **(kwargs or {}))
        source = self.source_of(tree_leaves((args, kwargs)))
        name = getattr(func, "_opname", "")
        if source is None or name in _ONLY_SHAPE:
            return result
        if name == "_local_scalar_dense":
            self.read = source
        changed = args[:1] if func._schema.is_mutable else ()
        for value in tree_leaves((result, changed)):
            if isinstance(value, Tensor):
                self.add(value, source)
        return result
