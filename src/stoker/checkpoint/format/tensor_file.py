"""Safetensors files: their layout, written from staged buffers and read as views."""

import json
import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

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
    """Reads tensors of a file as views of storage; on the local disk these are memory-mapped."""

    def __init__(self, storage: Storage, name: str) -> None:
        self._storage, self._name = storage, name
        length = int.from_bytes(storage.read_range(name, 0, 8), "little")
        header = json.loads(bytes(storage.read_range(name, 8, length)))
        self._offsets: dict[str, int] = {}
        self.entries: dict[str, TensorEntry] = {}
        for key, field in header.items():
            if key != "__metadata__":
                dtype, shape = DTYPES_BY_NAME[field["dtype"]], tuple(field["shape"])
                self.entries[key] = TensorEntry(key, dtype, shape)
                self._offsets[key] = 8 + length + field["data_offsets"][0]

    def view(self, key: str) -> Tensor:
        """Return a tensor of the file, backed by its bytes: clone it to keep it."""
        entry = self.entries[key]
        if entry.size == 0:
            return torch.empty(entry.shape, dtype=entry.dtype)
        data = self._storage.read_range(self._name, self._offsets[key], entry.size)
        return torch.frombuffer(data, dtype=torch.uint8).view(entry.dtype).reshape(entry.shape)
