"""Count tensor operations, host synchronizations and collectives."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

_WAITS_FOR_VALUES = frozenset(
    f"aten::{name}"
    for name in ("_local_scalar_dense", "nonzero", "masked_select", "equal", "_unique2")
)
_TAKES_MASKS = frozenset(("aten::index", "aten::index_put_", "aten::_index_put_impl_"))
_COPIES = frozenset(("aten::_to_copy", "aten::copy_"))
_READS_MEMORY = frozenset(("tolist", "numpy", "__array__"))


@dataclass(slots=True)
class Counts:
    """How often something happened.

    Attributes:
        operations: calls that reached torch's dispatcher, including views and `detach`.
        syncs: the host needed a value of a tensor: ``item``, ``float``, ``bool``, ``tolist``,
            ``numpy``, a copy to the host, ``nonzero`` and masks. On an accelerator each of them
            waits for all work submitted before.
        collectives: collective operations of all ranks.
    """

    operations: int = 0
    syncs: int = 0
    collectives: int = 0


class Counter:
    """Adds to every `Counts` in `open`, between `start` and `stop`.

    Args:
        on_host: tensors live on the host, where reading them copies nothing: ``tolist`` and
            ``numpy`` are counted by name.
    """

    def __init__(self, *, on_host: bool) -> None:
        self.open: list[Counts] = []
        self.running = False
        self._modes: list[Any] = [_Operations(self.open, on_host=on_host)]
        if on_host:
            self._modes.append(_Reads(self.open))

    def start(self) -> None:
        """Start counting; other dispatch modes must nest properly within."""
        self.running = True
        for mode in self._modes:
            mode.__enter__()

    def stop(self) -> None:
        """Stop counting."""
        for mode in reversed(self._modes):
            mode.__exit__(None, None, None)
        self.running = False


@contextmanager
def counted(*, on_host: bool = True) -> Iterator[Counts]:
    """Count what happens within the block.

    >>> with counted() as counts:
    ...     print(torch.ones(2).sum().item())
    2.0
    >>> counts
    Counts(operations=3, syncs=1, collectives=0)
    """
    counter, counts = Counter(on_host=on_host), Counts()
    counter.open.append(counts)
    counter.start()
    try:
        yield counts
    finally:
        counter.stop()


class _Operations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts every operation that reaches the dispatcher."""

    def __init__(self, into: list[Counts], *, on_host: bool) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._into, self._on_host = into, on_host

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if any(one.__torch_dispatch__ != Tensor.__torch_dispatch__ for one in types):
            return NotImplemented  # such as a DTensor, whose local operations are counted instead
        result = func(*args, **(kwargs or {}))
        name = func._schema.name
        together = name.startswith(("c10d::", "_c10d_functional::"))
        waits = _leaves(name, args, result)
        if name in _WAITS_FOR_VALUES or _has_mask(name, args):
            waits = self._on_host or args[0].device.type != "cpu"
        for counts in self._into:
            counts.operations += 1
            counts.collectives += together
            counts.syncs += waits
        return result


class _Reads(TorchFunctionMode):
    """Counts reads of host tensors, which are not operations."""

    def __init__(self, into: list[Counts]) -> None:
        super().__init__()
        self._into = into

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if getattr(func, "__name__", "") in _READS_MEMORY:
            for counts in self._into:
                counts.syncs += 1
        return func(*args, **(kwargs or {}))


def _has_mask(name: str, args: Any) -> bool:
    """Return whether an index is a mask, which needs the number of its true entries."""
    return name in _TAKES_MASKS and any(
        isinstance(index, Tensor) and index.dtype in (torch.bool, torch.uint8) for index in args[1]
    )


def _leaves(name: str, args: Any, result: Any) -> bool:
    """Return whether values are copied from an accelerator to the host."""
    if name not in _COPIES:
        return False
    source = args[1] if name == "aten::copy_" else args[0]
    return bool(source.device.type != "cpu" == result.device.type)  # untested: no such device
