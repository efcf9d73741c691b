"""Files of tensors in the safetensors format, written from one buffer and read by memory map.

8 bytes      length of the header
header       JSON: name → dtype, shape, place; filled up with spaces to a multiple of 8
the tensors  one after another, without holes
"""

import json
import math
import mmap
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from stoker.checkpoint.tensors import BY_NAME, DTYPES


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
