"""Safetensors files: their layout, written from staged buffers and read as views."""

import json
import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from stoker.checkpoint.format.validation import (
    check_contiguous,
    check_count,
    check_dimensions,
    check_keys,
    parse_object,
    reading,
)
from stoker.core.tree import is_sharded, local_part
from stoker.storage import Storage

DTYPES: dict[torch.dtype, str] = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
    torch.complex64: "C64",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint64: "U64",
    torch.uint32: "U32",
    torch.uint16: "U16",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
"""The names of dtypes in safetensors."""

_BLOCK = 8 << 20
"""Bytes to read at once, so that many small tensors take few calls."""

_LARGEST_BLOCK = 16 << 20
"""Bytes of a tensor to copy at once, so that memory never holds a second copy of a large one."""

_LARGEST_HEADER = 1 << 28
"""The largest header, in bytes."""

_OWN_BLOCK = 1 << 20
"""Bytes from which a tensor is worth being stored apart from its neighbours."""

DTYPES_BY_NAME = {name: dtype for dtype, name in DTYPES.items()}


def memory_identity(tensor: Any) -> object:
    """Return a value that is equal for two tensors which view the same memory in the same way."""
    part = local_part(tensor)
    if part.numel() == 0:
        return object()
    where = (part.data_ptr(), part.device, part.dtype, part.shape, part.stride(), part.is_conj())
    return (*where, tensor.shape, tensor.placements) if is_sharded(tensor) else where


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """Name, type and shape of a tensor in a file."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        """The size of the tensor in bytes."""
        return math.prod(self.shape) * self.dtype.itemsize


class TensorFile:
    """The layout of a file: wide dtypes come first, so that all tensors are aligned."""

    def __init__(self, entries: Iterable[TensorEntry]) -> None:
        self.entries = tuple(sorted(entries, key=lambda e: (-e.dtype.itemsize, e.name)))
        self.offsets: dict[str, int] = {}
        self.size = 0
        for entry in self.entries:
            self.offsets[entry.name] = self.size
            self.size += entry.size

    def only(self, names: Collection[str]) -> "TensorFile":
        """Return the layout of a file with only these tensors, in the same order."""
        return TensorFile(entry for entry in self.entries if entry.name in names)

    def cuts(self) -> list[int]:
        """Return where to cut the bytes of the tensors so that each large one stands alone."""
        ends, begin = [], 0
        for entry in self.entries:
            start = self.offsets[entry.name]
            if entry.size >= _OWN_BLOCK and start > begin:
                ends.append(start)
                begin = start
            if start + entry.size - begin >= _OWN_BLOCK:
                begin = start + entry.size
                ends.append(begin)
        return ends if begin == self.size else [*ends, self.size]

    def header(self) -> bytes:
        """Return the bytes that precede the tensors."""
        table = {
            entry.name: {
                "dtype": DTYPES[entry.dtype],
                "shape": list(entry.shape),
                "data_offsets": [self.offsets[entry.name], self.offsets[entry.name] + entry.size],
            }
            for entry in self.entries
        }
        text = json.dumps(table, separators=(",", ":"), ensure_ascii=False).encode()
        text += b" " * (-len(text) % 8)
        return len(text).to_bytes(8, "little") + text


class TensorReader:
    """Reads tensors of a file as views of storage; on the local disk these are memory-mapped.

    Small neighbouring tensors are read by one call.
    """

    def __init__(self, storage: Storage, name: str) -> None:
        self._storage, self._name = storage, name
        self._offsets: dict[str, int] = {}
        self._begin = self._end = self._begin_of_data = 0
        self._block = memoryview(b"")
        self.entries: dict[str, TensorEntry] = {}
        with reading(f"'{name}' in '{storage}'"):
            self._read_header(storage.size(name) or 0)

    def _read_header(self, size: int) -> None:
        """Read the entries, after checking them against the format and the size of the file."""
        length = int.from_bytes(self._storage.read_range(self._name, 0, 8), "little")
        check_count(length, "the size of its header", min(size - 7, _LARGEST_HEADER))
        header = parse_object(bytes(self._storage.read_range(self._name, 8, length)))
        header.pop("__metadata__", None)
        ranges = []
        for key, field in header.items():
            try:
                entry, begin, end = _read_entry(key, field)
            except (ValueError, KeyError, TypeError) as error:
                raise ValueError(f"'{key[:200]}': {error}") from error
            self.entries[key], self._offsets[key] = entry, 8 + length + begin
            ranges.append((begin, end))
        check_contiguous(ranges, size - 8 - length)
        self._begin_of_data, self._end = 8 + length, size

    def cuts(self) -> list[int]:
        """Return where to cut the file: after its header, and between tensors."""
        cuts = TensorFile(self.entries.values()).cuts()
        return [self._begin_of_data, *(self._begin_of_data + cut for cut in cuts)]

    def view(self, key: str) -> Tensor:
        """Return a tensor of the file, backed by its bytes: clone it to keep it."""
        entry = self.entries[key]
        return self._elements(key, 0, math.prod(entry.shape)).view(entry.shape)

    def read_into(self, key: str, target: Tensor, offsets: Sequence[int] = ()) -> None:
        """Copy a tensor of the file, or a part of it, into one in memory, block by block.

        Args:
            key: the name of the tensor.
            target: receives the part; it has the shape of the part, and any strides.
            offsets: where the part begins in each dimension; by default at the beginning.
        """
        shape = self.entries[key].shape
        if target.numel() == 0:
            return
        if tuple(target.shape) == shape and target.is_contiguous():
            target, shape, offsets = target.view(-1), (target.numel(),), ()
        first, *others = offsets or (0,) * len(shape)
        row = math.prod(shape[1:])
        at_once = max(1, _LARGEST_BLOCK // (row * self.entries[key].dtype.itemsize))
        for begin in range(0, target.shape[0], at_once):
            into = target[begin : begin + at_once]
            part = self._elements(key, (first + begin) * row, into.shape[0] * row)
            part = part.view(into.shape[0], *shape[1:])
            for dim, offset in enumerate(others, 1):
                part = part.narrow(dim, offset, into.shape[dim])
            into.copy_(part)

    def _elements(self, key: str, first: int, count: int) -> Tensor:
        """Return consecutive elements of a tensor, backed by the bytes of the file."""
        dtype = self.entries[key].dtype
        if count == 0:
            return torch.empty(0, dtype=dtype)
        offset, size = self._offsets[key] + first * dtype.itemsize, count * dtype.itemsize
        if not self._begin <= offset <= offset + size <= self._begin + len(self._block):
            self._block = memoryview(b"")  # its memory is free before more is used
            length = max(size, min(_BLOCK, self._end - offset))
            self._block = self._storage.read_range(self._name, offset, length)
            self._begin = offset
        at = offset - self._begin
        return torch.frombuffer(self._block, dtype=dtype, count=count, offset=at)


def _read_entry(name: str, field: Any) -> tuple[TensorEntry, int, int]:
    """Return a tensor of a header, and where its bytes begin and end, after checking them."""
    fields = check_keys(field, ("dtype", "shape", "data_offsets"), "it")
    dtype = DTYPES_BY_NAME.get(fields["dtype"])
    if dtype is None:
        raise ValueError("its dtype is unknown")
    entry = TensorEntry(name, dtype, check_dimensions(fields["shape"], "its shape"))
    begin, end = check_dimensions(fields["data_offsets"], "its place")
    if end - begin != entry.size:
        raise ValueError(f"it has {end - begin} bytes, expected {entry.size}")
    return entry, begin, end
