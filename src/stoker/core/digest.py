"""Digests of values in memory, the same in every process, and of files by their sizes and times."""

import os
import stat
import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from itertools import groupby
from operator import attrgetter
from pathlib import PurePath
from typing import Any

import numpy as np
import torch
import xxhash
from numpy.typing import NDArray
from torch import Tensor

from stoker.core.batch_list import joined, leaves_of, tensors_of
from stoker.core.tree import CONTAINERS, is_sharded, local_part, raw_items

_FULL = 1 << 28
"""Bytes of an array that are hashed completely; of a larger one, evenly spaced blocks are."""

_SMALL = 1 << 20
_BLOCK = 4096
_BLOCKS = 4096
_MAPPED_BLOCKS = 256
_MAX_ITEMS = 200_000
"""Items of a list that are hashed; of a longer one, evenly spaced ones are."""

_MAX_JOINED = 1 << 26
"""Bytes of a list of batches that are joined for hashing; a larger one is hashed one by one."""

_MAX_FILES = 2000
_MAX_DEPTH = 5
_MAX_DEPTH_EXACT = 20


def tensor_text(tensor: Tensor, *, content: bool = True, full: int = _FULL) -> str:
    """Return the type and the shape of a tensor, and the digest of its content.

    Args:
        tensor: any tensor; of one that is sharded or not in memory, the content does not count.
        content: whether the content counts.
        full: the largest number of bytes to read completely; without limit, the local part of a
            sharded tensor counts.
    """
    tensor = local_part(tensor) if full > _FULL else tensor
    kind = f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}".replace(" ", "")
    if not content:
        return kind
    if tensor.numel() == 1 and not tensor.is_meta and not tensor.is_complex():
        return f"tensor {kind} {tensor.item()!r}"
    is_dense = tensor.layout is torch.strided
    too_large = not is_dense and tensor.numel() * tensor.element_size() > full
    if too_large or tensor.is_meta or is_sharded(tensor) or tensor.is_quantized:
        return f"tensor {kind}"
    plain = tensor.detach() if is_dense else tensor.detach().to_dense()
    if tensor.is_complex():
        plain = torch.view_as_real(plain.resolve_conj())
    if not plain.is_contiguous() and plain.nbytes > full:
        plain = plain[:: max(1, plain.nbytes // full)]
    mapped = full <= _FULL and getattr(plain.untyped_storage(), "filename", None) is not None
    data = plain.resolve_neg().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
    return f"tensor {kind} #{_digest_bytes(data, full, mapped=mapped)}"


def array_text(array: Any, *, full: int = _FULL) -> str:
    """Return the type and the shape of a NumPy array, and the digest of its content."""
    array = np.asanyarray(array)
    if isinstance(array, np.ma.MaskedArray):
        mask = array_text(np.ma.getmaskarray(array), full=full)
        return f"{array_text(array.data, full=full)} masked by {mask}"
    kind = f"array {array.dtype}{list(array.shape)}".replace(" ", "").replace("array", "array ")
    if array.size == 1 and array.dtype.kind in "biuf":
        return f"{kind} {array.item()!r}"
    mapped = full <= _FULL and _is_mapped(array)
    if not array.flags.c_contiguous:
        array = array[:: max(1, array.nbytes // (full >> (8 if mapped else 0)))]
    data = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    return f"{kind} #{_digest_bytes(data, full, mapped=mapped)}"


def _is_mapped(array: Any) -> bool:
    while array is not None:
        if isinstance(array, np.memmap):
            return True
        array = getattr(array, "base", None)
    return False


def _digest_bytes(data: NDArray[np.uint8], full: int, *, mapped: bool) -> str:
    """Return the digest of bytes, or of evenly spaced blocks of many or of a mapped file."""
    count = _MAPPED_BLOCKS if mapped or full < _FULL else _BLOCKS
    checksum = xxhash.xxh3_64(data.size.to_bytes(8, "little"))
    if data.size > (count * _BLOCK if mapped else full):
        stride = data.size // count
        blocks = data[: stride * count].reshape(count, stride)[:, :_BLOCK]
        checksum.update(np.ascontiguousarray(blocks).data)
        data = data[-_BLOCK:]
    checksum.update(data.data)
    return str(checksum.hexdigest())


def file_text(path: str, folders: Iterable[str] = ("",)) -> str | None:
    """Return a path with the size and the time of its file; None if it is not one of a file.

    Args:
        path: a text that may be a path.
        folders: where a relative path may start.
    """
    state = _file_state(path, folders)
    return None if state is None else f"{path} ({state[0]} bytes, #{digest(state)})"


def _file_state(path: str, folders: Iterable[str]) -> tuple[int, int] | None:
    if len(path) > 1000 or "\0" in path or not ("." in path or os.sep in path):
        return None
    for folder in folders:
        with suppress(OSError, ValueError):
            found = os.stat(os.path.join(folder, path))
            if stat.S_ISREG(found.st_mode):
                return found.st_size, found.st_mtime_ns
    return None


def digest(value: Any, *, exact: bool = False, files: Sequence[str] = ()) -> str:
    """Return 16 digits that identify a plain value, or a collection of them.

    Args:
        value: anything; of objects, the types and attributes count.
        exact: whether every bit counts, however large or deep the value is; otherwise samples of
            large values are read.
        files: the folders in which texts may be paths of files, which then count too.
    """
    checksum = xxhash.xxh3_64()
    depth, full = (_MAX_DEPTH_EXACT, sys.maxsize) if exact else (_MAX_DEPTH, _FULL)
    _feed(checksum, value, depth, files, full)
    return str(checksum.hexdigest())


def _feed(checksum: Any, value: Any, depth: int, files: Sequence[str], full: int) -> None:
    if isinstance(value, str | bytes | int | float | bool | complex | PurePath | None):
        checksum.update(_encoded(value))
    elif isinstance(value, Tensor):
        checksum.update(tensor_text(value, full=full).encode())
    elif isinstance(value, np.ndarray | np.generic) and value.dtype != object:
        checksum.update(array_text(value, full=full).encode())
    elif depth == 0:
        checksum.update(type(value).__qualname__.encode())
    elif isinstance(value, dict):
        items = sorted(dict.items(value), key=lambda pair: digest(pair[0]))
        _feed_items(checksum, items, depth, files, full)
    elif isinstance(value, set | frozenset):
        _feed_items(checksum, sorted(raw_items(value), key=digest), depth, files, full)
    elif isinstance(value, (np.ndarray, *CONTAINERS)):
        items = list(value) if isinstance(value, np.ndarray) else raw_items(value)
        _feed_items(checksum, items, depth, files, full)
    else:
        checksum.update(type(value).__qualname__.encode())
        state = getattr(value, "__dict__", None)
        if isinstance(state, dict) and not callable(value):
            _feed(checksum, state, depth - 1, files, full)


def _feed_items(
    checksum: Any, items: list[Any], depth: int, files: Sequence[str], full: int
) -> None:
    checksum.update(b"[%d" % len(items))
    if len(items) > 100 and (array := _as_array(items)) is not None:
        checksum.update(array_text(array, full=full).encode())
        return
    if (leaves := leaves_of(items)) is not None and _feed_batches(checksum, leaves, full):
        return
    if full <= _FULL:
        items = items[:: max(1, len(items) // _MAX_ITEMS)]
        full = max(_SMALL, full // max(1, len(items)))
    if files:
        for one in items[:: max(1, len(items) // _MAX_FILES)]:
            for text in [one] if isinstance(one, str | PurePath) else _texts(one):
                checksum.update(repr(_file_state(str(text), files)).encode())
    if all(type(one) is str for one in items):
        checksum.update("\0".join(items).encode("utf-8", "surrogatepass"))
        return
    for one in items:
        _feed(checksum, one, depth - 1, (), full)


def _feed_batches(checksum: Any, leaves: list[Any], full: int) -> bool:
    """Hash a list of batches at once; return whether it is small enough for that."""
    found = tensors_of(leaves)
    if sum(map(attrgetter("nbytes"), found)) > min(full, _MAX_JOINED):
        return False
    shapes = [
        (list(shape), len(list(run))) for shape, run in groupby(map(attrgetter("shape"), found))
    ]
    scalars = [leaf for leaf in leaves if not isinstance(leaf, Tensor)]
    checksum.update(_encoded(f"{shapes} {scalars}"))
    for tensor in joined(found):
        checksum.update(tensor_text(tensor).encode())
    return True


def _texts(value: Any) -> Iterable[Any]:
    found = value if isinstance(value, tuple | list) else ()
    return [one for one in found[:4] if isinstance(one, str | PurePath)]


def _as_array(items: list[Any]) -> NDArray[Any] | None:
    kinds = set(map(type, items))
    if kinds not in ({int}, {float}, {bool}):
        return None
    try:
        array = np.array(items)
    except OverflowError:
        return None
    return array if array.dtype.kind in "biuf" else None


def _encoded(value: Any) -> bytes:
    if isinstance(value, bytes):
        return b"b" + value
    return f"{type(value).__name__} {value!r}\0".encode("utf-8", "surrogatepass")
