"""Compare values in bounded time: something small that differs if a value does."""

import random
from enum import Enum, Flag
from typing import Any

import numpy as np
import torch
from torch import Tensor

from stoker.core.batch_list import BatchListState, leaves_of, tensors_of
from stoker.core.digest import digest
from stoker.core.library_values import bit_state, is_subclass, library_signature
from stoker.core.object_search import (
    ARRAYS,
    MAX_ITEMS,
    RNGS,
    SCALAR_TYPES,
    SCALARS,
    Found,
    Place,
    Same,
    is_iterator,
    is_plain,
    sample,
)
from stoker.core.tree import is_container

MAX_HASHED = {Tensor: 2**20, np.ndarray: 2**25}
"""Arrays of more bytes are compared by a sample; tensors know themselves whether they changed."""

MAX_NUMBERS = 4_000_000
"""Lists of more numbers are compared by a sample, and not saved, but reported."""


def signatures(found: Found, *, rngs: bool = False) -> dict[Place, Any]:
    """Return the signatures of all values of a search, and what attributes refer to."""
    known: dict[Place, Any] = {
        place: signature(value)
        for place, value in found.values.items()
        if rngs or not isinstance(value, RNGS)
    }
    return found.references | known


def signature(value: Any) -> Any:
    """Return something that differs if the value does, in bounded time."""
    try:
        return _compared(value)
    except Exception:  # a run must not fail because of a foreign object
        return type(value)


def _compared(value: Any) -> Any:
    kind = type(value)
    if kind in SCALAR_TYPES:
        return kind, value if kind is not float else repr(value)
    if kind is Same or is_iterator(value):
        return value if kind is Same else kind
    if is_dense(value):
        return _tensor_signature(value) if isinstance(value, Tensor) else _array_signature(value)
    if is_container(value):
        return _container_signature(value)
    if isinstance(value, (*RNGS, np.generic, Enum)):
        value = rng_state(value) if isinstance(value, RNGS) else value
        if isinstance(value, Enum):
            value = value.value if isinstance(value, Flag) else value.name
        return kind, digest(value)
    base: Any = next((one for one in SCALARS if isinstance(value, one)), None)
    return library_signature(value) if base is None else (kind, base.__repr__(value))


def is_dense(value: Any) -> bool:
    """Return whether this is a plain array or tensor."""
    if isinstance(value, Tensor):
        return value.layout is torch.strided and not is_subclass(value)
    return isinstance(value, np.ndarray) and not isinstance(value, np.ma.MaskedArray)


def text_of(value: Any) -> str:
    """Return a text that differs if the value does, in any process."""
    return digest(value, exact=True) if leaves_of(value) is not None else repr(signature(value))


def _array_signature(array: "np.ndarray[Any, Any]") -> Any:
    if array.dtype.kind == "O":
        return array.shape, _container_signature(array.reshape(-1).tolist())
    if array.nbytes <= MAX_HASHED[np.ndarray]:
        return digest(array)
    return array.shape, str(array.dtype), digest(array.flat[:: max(1, array.size // 1024)])


def _tensor_signature(tensor: Tensor) -> Any:
    if tensor.nbytes <= MAX_HASHED[Tensor]:
        return digest(tensor)
    version = None if tensor.is_inference() else tensor._version
    kind = (tensor.shape, tensor.dtype, version)
    if not tensor.is_contiguous():
        return kind
    flat = tensor.detach().view(-1)
    return *kind, digest(flat[:: max(1, flat.numel() // 1024)])


def _container_signature(value: Any) -> Any:
    if (leaves := leaves_of(value)) is not None:
        excerpts = map(_excerpt, tensors_of(leaves)[:: max(1, len(leaves) // 64)])
        return BatchListState(value, leaves), digest(list(excerpts))
    if not is_plain(value):
        return type(value), len(value)
    if isinstance(value, set | frozenset):
        return digest(value) if len(value) <= MAX_ITEMS else len(value)
    items = list(sample(value))
    total = _sum(value, items) if len(value) > MAX_ITEMS else None
    if sum(item.nbytes for item in items if isinstance(item, ARRAYS)) > MAX_HASHED[Tensor]:
        items = [_excerpt(item) if isinstance(item, ARRAYS) else item for item in items]
    return type(value), len(value), total, digest([_bounded(item) for item in items])


def _sum(value: Any, items: list[Any]) -> Any:
    """Return the sum of a long container of numbers, in which a sample would miss a change."""
    numbers = dict.values(value) if isinstance(value, dict) else value
    if isinstance(value, dict):
        items = items[1::2]
    if len(value) > MAX_NUMBERS or not all(type(item) in (int, float) for item in items):
        return None
    try:
        return repr(sum(numbers))
    except TypeError:
        return None


def _excerpt(array: Any) -> Any:
    """Return some of an array's elements."""
    if array.ndim == 0 or 0 in array.shape:
        return array
    row = array[0] if array.ndim > 1 else array
    return row[:: max(1, len(row) // 64)] if row.ndim == 1 else row.reshape(-1)[:64]


def _bounded(value: Any) -> Any:
    """Return a value with containers in it replaced by their signatures."""
    return str(_container_signature(value)) if is_container(value) else value


def rng_state(generator: Any) -> Any:
    """Return the state of a random number generator as plain values."""
    if isinstance(generator, random.Random):
        version, keys, gauss = generator.getstate()
        return [version, np.array(keys, dtype=np.int64), gauss]
    if isinstance(generator, np.random.Generator):
        return bit_state(generator.bit_generator)
    if isinstance(generator, np.random.RandomState):
        return generator.get_state(legacy=False)
    return generator.get_state()
