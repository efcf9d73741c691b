"""Tensors as bytes: their names in safetensors, and when two are the same."""

import json
import math
import mmap
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from stoker.core.tree import is_sharded, local_part

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
"""What safetensors calls each dtype it has."""

BY_NAME = {name: dtype for dtype, name in DTYPES.items()}


def identity(tensor: Any) -> object:
    """Equal for two tensors that are the same numbers in the same memory."""
    part = local_part(tensor)
    if part.numel() == 0:
        return object()
    where = (part.data_ptr(), part.device, part.dtype, part.shape, part.stride(), part.is_conj())
    return (*where, tensor.shape, tensor.placements) if is_sharded(tensor) else where


@dataclass(frozen=True, slots=True)
class Entry:
    """One tensor of a file."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        """Its bytes."""
        return math.prod(self.shape) * self.dtype.itemsize


class TensorFile:
    """Where each tensor of a file stands; wide types first, so that all are aligned."""

    def __init__(self, entries: Iterable[Entry]) -> None:
        self.entries = tuple(sorted(entries, key=lambda e: (-e.dtype.itemsize, e.name)))
        self.places: dict[str, int] = {}
        self.size = 0
        for entry in self.entries:
            self.places[entry.name] = self.size
            self.size += entry.size

    def header(self) -> bytes:
        """The bytes before the tensors."""
        table = {
            entry.name: {
                "dtype": DTYPES[entry.dtype],
                "shape": list(entry.shape),
                "data_offsets": [self.places[entry.name], self.places[entry.name] + entry.size],
            }
            for entry in self.entries
        }
        text = json.dumps(table, separators=(",", ":"), ensure_ascii=False).encode()
        text += b" " * (-len(text) % 8)
        return len(text).to_bytes(8, "little") + text


class TensorReader:
    """The tensors of a file as views of a private memory map: nothing is read before it is used."""

    def __init__(self, path: Path) -> None:
        with path.open("rb") as file:
            self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        length = int.from_bytes(self._map[:8], "little")
        self._start = 8 + length
        self._places: dict[str, int] = {}
        self.entries: dict[str, Entry] = {}
        for name, field in json.loads(self._map[8 : self._start]).items():
            if name != "__metadata__":
                self.entries[name] = Entry(name, BY_NAME[field["dtype"]], tuple(field["shape"]))
                self._places[name] = field["data_offsets"][0]

    def view(self, name: str) -> Tensor:
        """A tensor of the file; copy it before the reader goes."""
        entry = self.entries[name]
        if entry.size == 0:
            return torch.empty(entry.shape, dtype=entry.dtype)
        start = self._start + self._places[name]
        raw = torch.frombuffer(self._map, dtype=torch.uint8, count=entry.size, offset=start)
        return raw.view(entry.dtype).reshape(entry.shape)
