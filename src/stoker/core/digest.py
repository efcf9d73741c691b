"""Digests and fingerprints of values: the same bits give the same digest in every process."""

import random
from collections.abc import Callable, Iterator, Mapping, Set
from typing import Any

import numpy as np
import torch
import xxhash
from torch import Tensor

from stoker.core.tree import local_part

_SCALARS = (bool, int, float, str, type(None))

_MAX_DEPTH = 20
"""A limit for objects that refer to each other."""

_MAX_LENGTH = 60
"""Longer texts, and longer lists of plain values, get one digest."""


def fingerprint(value: Any) -> str:
    """Return a scalar in readable form, or ``#`` and the digest of any other value.

    For a tensor that is sharded across processes, only the local shard counts.
    """
    value = local_part(value)
    if type(value) in _SCALARS and len(text := repr(value)) <= _MAX_LENGTH:
        return text
    if isinstance(value, Tensor) and value.numel() == 1 and not value.is_complex():
        return f"{value.item()!r} ({str(value.dtype).removeprefix('torch.')})"
    return f"#{digest(value)}"


def fingerprints(
    value: Any, keep: Callable[[Any], bool] = lambda _: True, path: str = ""
) -> dict[str, str]:
    """Return the fingerprint of every leaf by its path: ``{"state.0.exp_avg": "#9f…"}``.

    Args:
        value: A tree of mappings and sequences.
        keep: Selects the leaves to include.
        path: The path of the tree itself.
    """
    if isinstance(value, Mapping):
        items = list(value.items())
    elif isinstance(value, list | tuple) and not _is_long_list(value):
        items = list(enumerate(value))
    else:
        return {path: fingerprint(value)} if keep(value) else {}
    found: dict[str, str] = {}
    for key, item in items:
        found |= fingerprints(item, keep, f"{path}.{key}" if path else str(key))
    return found


def digest(value: Any) -> str:
    """Return 16 hexadecimal digits that identify the bits of any value."""
    checksum = xxhash.xxh3_64()
    for piece in _pieces(value):
        checksum.update(piece)
        checksum.update(b"\0")
    return str(checksum.hexdigest())


def _is_long_list(value: Any) -> bool:
    if type(value) not in (list, tuple) or len(value) <= _MAX_LENGTH:
        return False
    return all(type(item) in _SCALARS for item in value)


def _pieces(value: Any, depth: int = _MAX_DEPTH) -> Iterator[bytes | memoryview]:
    if isinstance(value, Tensor):
        value = local_part(value)
    yield type(value).__name__.encode()
    if isinstance(value, Tensor):
        yield f"{value.dtype}{list(value.shape)}".encode()
        yield _bytes_of(value)
    elif isinstance(value, np.ndarray | np.generic) and value.dtype.kind != "O":
        yield f"{value.dtype}{value.shape}".encode()
        yield value.tobytes()
    elif isinstance(value, (*_SCALARS, bytes, complex)) or _is_long_list(value):
        yield repr(value).encode()
    elif isinstance(value, type):
        yield value.__qualname__.encode()
    elif isinstance(value, Set):
        yield from sorted(digest(item).encode() for item in value)
    elif depth:
        for item in _members(value):
            yield from _pieces(item, depth - 1)


def _members(value: Any) -> Iterator[Any]:
    """Yield what a container or an object holds, without functions, whose repr is an address."""
    if isinstance(value, Mapping):
        for pair in value.items():
            yield from pair
    elif (state := _generator_state(value)) is not None:
        yield state
    elif hasattr(value, "__iter__") and hasattr(value, "__len__"):
        yield from value
    elif hasattr(value, "__dict__"):
        yield from (pair for pair in vars(value).items() if not callable(pair[1]))


def _generator_state(value: Any) -> Any:
    """Return the state of a random number generator, or None for any other value."""
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
