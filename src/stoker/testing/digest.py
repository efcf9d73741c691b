"""Values as short marks: the same bits give the same mark, in every process."""

import random
from collections.abc import Callable, Iterator, Mapping, Set
from typing import Any

import numpy as np
import torch
import xxhash
from torch import Tensor

from stoker.core.tree import local_part

_SCALARS = (bool, int, float, str, type(None))
_DEEPEST = 20
"""Objects may hold each other in a circle."""

_LONGEST = 60
"""A text, or a list of plain values, that is longer is marked as a whole."""


def mark(value: Any) -> str:
    """A scalar as people read it, anything else as ``#`` and a digest of its bits.

    Of a tensor that several processes share, the part of this one.
    """
    value = local_part(value)
    if type(value) in _SCALARS and len(text := repr(value)) <= _LONGEST:
        return text
    if isinstance(value, Tensor) and value.numel() == 1 and not value.is_complex():
        return f"{value.item()!r} ({str(value.dtype).removeprefix('torch.')})"
    return f"#{digest(value)}"


def digest(value: Any) -> str:
    """16 digits that stand for the bits of a value, whatever it is made of."""
    checksum = xxhash.xxh3_64()
    for piece in _pieces(value):
        checksum.update(piece)
        checksum.update(b"\0")
    return str(checksum.hexdigest())


def marks(
    value: Any, keep: Callable[[Any], bool] = lambda _: True, path: str = ""
) -> dict[str, str]:
    """The mark of every leaf of a tree, by its place: ``{"state.0.exp_avg": "#9f…"}``.

    Args:
        value: the tree.
        keep: which leaves count.
        path: the place of the tree itself.
    """
    if isinstance(value, Mapping):
        items = list(value.items())
    elif isinstance(value, list | tuple) and not _is_long(value):
        items = list(enumerate(value))
    else:
        return {path: mark(value)} if keep(value) else {}
    found: dict[str, str] = {}
    for key, item in items:
        found |= marks(item, keep, f"{path}.{key}" if path else str(key))
    return found


def _is_long(value: Any) -> bool:
    if type(value) not in (list, tuple) or len(value) <= _LONGEST:
        return False
    return all(type(item) in _SCALARS for item in value)


def _pieces(value: Any, depth: int = _DEEPEST) -> Iterator[bytes | memoryview]:
    value = local_part(value)
    yield type(value).__name__.encode()
    if isinstance(value, Tensor):
        yield f"{value.dtype}{list(value.shape)}".encode()
        yield _bytes_of(value)
    elif isinstance(value, np.ndarray | np.generic) and value.dtype.kind != "O":
        yield f"{value.dtype}{value.shape}".encode()
        yield value.tobytes()
    elif isinstance(value, (*_SCALARS, bytes, complex)) or _is_long(value):
        yield repr(value).encode()
    elif isinstance(value, Set):
        yield from sorted(digest(item).encode() for item in value)
    elif depth:
        for item in _parts(value):
            yield from _pieces(item, depth - 1)


def _parts(value: Any) -> Iterator[Any]:
    """What a container or an object holds; nothing that has an address for a name."""
    if isinstance(value, Mapping):
        for pair in value.items():
            yield from pair
    elif (state := generator_state(value)) is not None:
        yield state
    elif hasattr(value, "__iter__") and hasattr(value, "__len__"):
        yield from value
    elif hasattr(value, "__dict__"):
        yield from (pair for pair in vars(value).items() if not callable(pair[1]))


def generator_state(value: Any) -> Any:
    """The state of a generator of random numbers; None if it is none."""
    if isinstance(value, random.Random):
        return value.getstate()
    if isinstance(value, np.random.Generator):
        return value.bit_generator.state
    if isinstance(value, np.random.RandomState):
        return value.get_state()
    return value.get_state() if isinstance(value, torch.Generator) else None


def _bytes_of(tensor: Tensor) -> bytes | memoryview:
    tensor = tensor.detach()
    if tensor.layout is not torch.strided:
        tensor = tensor.to_dense()
    plain = tensor.resolve_conj().resolve_neg().cpu().contiguous()
    if plain.is_complex():
        plain = torch.view_as_real(plain).contiguous()
    return plain.reshape(-1).view(torch.uint8).numpy().data
