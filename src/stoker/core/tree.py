"""Batches and outputs as trees of tensors: nested tuples, lists, dicts and dataclasses."""

import dataclasses
from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

_PAIRS = (tuple, list)


def map_tensors(function: Callable[[Tensor], Tensor], tree: Any) -> Any:
    """Return the tree with ``function`` applied to every tensor; other leaves are unchanged."""
    if isinstance(tree, Tensor):
        return function(tree)
    if isinstance(tree, Mapping):
        return _rebuild_mapping(tree, {k: map_tensors(function, v) for k, v in tree.items()})
    if isinstance(tree, tuple | list):
        return _rebuild_sequence(tree, [map_tensors(function, item) for item in tree])
    if dataclasses.is_dataclass(tree) and not isinstance(tree, type):
        values = {f.name: getattr(tree, f.name) for f in dataclasses.fields(tree) if f.init}
        return dataclasses.replace(tree, **{k: map_tensors(function, v) for k, v in values.items()})
    return tree


def tensors(tree: Any) -> Iterator[Tensor]:
    """Yield every tensor of the tree, depth first."""
    if isinstance(tree, Tensor):
        yield tree
    elif isinstance(tree, Mapping):
        for value in tree.values():
            yield from tensors(value)
    elif isinstance(tree, tuple | list):
        for item in tree:
            yield from tensors(item)
    elif dataclasses.is_dataclass(tree) and not isinstance(tree, type):
        for field in dataclasses.fields(tree):
            yield from tensors(getattr(tree, field.name))


def batch_size(batch: Any) -> int:
    """Return the number of samples in a batch: the first dimension of its first tensor, or 1."""
    if batch.__class__ in _PAIRS and batch and isinstance(first := batch[0], Tensor) and first.ndim:
        return first.size(0)  # the common case, at a fraction of the cost
    targets = batch[1] if isinstance(batch, tuple | list) and len(batch) == 2 else None
    if isinstance(targets, tuple | list) and targets and isinstance(targets[0], Mapping):
        return len(targets)  # detection models: a list of images and a list of dicts
    for tensor in tensors(batch):
        return tensor.shape[0] if tensor.ndim else 1
    if isinstance(batch, tuple | list) and batch and isinstance(batch[0], Sequence):
        return len(batch[0])
    return 1


def concatenate(trees: Sequence[Any]) -> Any:
    """Concatenate trees of the same structure along the first dimension of their tensors.

    Scalar tensors are stacked; other leaves become a list.
    """
    first = trees[0]
    if isinstance(first, Tensor):
        return torch.cat(list(trees)) if first.ndim else torch.stack(list(trees))
    if isinstance(first, Mapping):
        return _rebuild_mapping(first, {k: concatenate([t[k] for t in trees]) for k in first})
    if isinstance(first, tuple | list):
        return _rebuild_sequence(first, [concatenate(items) for items in zip(*trees, strict=True)])
    if dataclasses.is_dataclass(first) and not isinstance(first, type):
        names = [f.name for f in dataclasses.fields(first) if f.init]
        return dataclasses.replace(
            first, **{n: concatenate([getattr(t, n) for t in trees]) for n in names}
        )
    return list(trees)


def split_batch(batch: Any, count: int) -> list[Any]:
    """Split a batch into equal parts along the first dimension of its tensors.

    Tensors whose first dimension is not the batch size are repeated in every part.
    """
    size = batch_size(batch)
    step = size // count

    def part(start: int) -> Any:
        return map_tensors(
            lambda t: t[start : start + step] if t.ndim and t.shape[0] == size else t, batch
        )

    return [part(number * step) for number in range(count)]


def as_floats(values: Collection[float | Tensor]) -> list[float]:
    """Return numbers and scalar tensors as floats, read back from their device in one copy."""
    tensors = [value for value in values if isinstance(value, Tensor) and value.ndim == 0]
    if values and len(tensors) == len(values):
        numbers: list[float] = torch.stack(tensors).tolist()
        return numbers
    return [float(value) for value in values]


def describe(tree: Any) -> str:
    """Describe a tree for messages: ``(float32[8, 3], int64[8])``."""
    if isinstance(tree, Tensor):
        return f"{str(tree.dtype).removeprefix('torch.')}{list(tree.shape)}"
    if isinstance(tree, Mapping):
        return "{" + ", ".join(f"{k}: {describe(v)}" for k, v in tree.items()) + "}"
    if isinstance(tree, tuple | list):
        inside = ", ".join(describe(item) for item in tree)
        return f"[{inside}]" if isinstance(tree, list) else f"({inside})"
    return type(tree).__name__


def is_sharded(tensor: Tensor) -> bool:
    """Return whether a tensor is a DTensor, without importing that slow package."""
    return hasattr(tensor, "device_mesh") and hasattr(tensor, "placements")


def local_part(tensor: Any) -> Tensor:
    """Return the part of a tensor that this rank holds: all of it, unless it is sharded."""
    part: Tensor = tensor.to_local() if is_sharded(tensor) else tensor
    return part


def _rebuild_sequence(tree: Any, items: list[Any]) -> Any:
    if hasattr(tree, "_fields"):  # a named tuple takes its fields one by one
        return type(tree)(*items)
    return type(tree)(items)


def _rebuild_mapping(tree: Any, items: dict[Any, Any]) -> Any:
    return items if type(tree) is dict else type(tree)(items)


CONTAINERS = (list, tuple, dict, set, frozenset, deque)
_ACCESS = ("__iter__", "__len__", "__getitem__")
_BUILT_IN = {getattr(kind, name, None) for kind in (*CONTAINERS, OrderedDict) for name in _ACCESS}


def is_container(value: Any) -> bool:
    """Return whether this is a built-in container, and reading it runs no code of a user."""
    kind = type(value)
    return isinstance(value, CONTAINERS) and all(
        getattr(kind, name, None) in _BUILT_IN for name in _ACCESS
    )


def raw_items(value: Any) -> list[Any]:
    """Return the items, or keys, of a built-in container, even if a subclass iterates otherwise."""
    kind = next(kind for kind in CONTAINERS if isinstance(value, kind))
    return list(kind.__iter__(value))
