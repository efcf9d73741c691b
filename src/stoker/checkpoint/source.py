"""The shared tensors of a checkpoint, wherever in its files their pieces stand."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

import torch
from torch import Tensor

from stoker.checkpoint.manifest import Manifest
from stoker.checkpoint.plan import key_of
from stoker.checkpoint.tensorfile import TensorReader
from stoker.checkpoint.tensors import BY_NAME
from stoker.tree import is_sharded

Like: TypeAlias = Callable[[str, tuple[int, ...]], Tensor | None]
"""For the name and shape of a tensor, one that is sharded as it is to be."""


@dataclass(slots=True)
class Stored:
    """A tensor of a checkpoint: offset → file and name of each piece."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    pieces: dict[tuple[int, ...], tuple[str, str]] = field(default_factory=dict)

    @property
    def is_whole(self) -> bool:
        """Whether it stands in one piece."""
        return len(self.pieces) == 1


class Source:
    """Reads shared tensors out of the files of a checkpoint."""

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        files = [n for n in manifest.files if n.endswith(".safetensors") and n[:5] != "rank-"]
        self._readers = {name: TensorReader(folder / name) for name in files}
        self.stored: dict[str, Stored] = {}
        placed = set()
        for key, table in manifest.split.items():
            stored = Stored(BY_NAME[table["dtype"]], tuple(table["shape"]))
            for piece in table["pieces"]:
                stored.pieces[tuple(piece["offset"])] = (piece["file"], piece["name"])
                placed.add((piece["file"], piece["name"]))
            self.stored[key] = stored
        for file, reader in self._readers.items():
            for name, entry in reader.entries.items():
                if (file, name) not in placed:
                    whole = {(0,) * len(entry.shape): (file, name)}
                    self.stored[key_of(file, name)] = Stored(entry.dtype, entry.shape, whole)

    def piece(self, key: str, offset: tuple[int, ...]) -> Tensor:
        """One piece of a tensor, as a view of its file."""
        file, name = self.stored[key].pieces[offset]
        return self._readers[file].view(name)

    def read(self, keys: set[str], like: Like) -> dict[str, Tensor]:
        """The tensors ``keys``, in fresh memory: sharded as ``like`` says, or else whole."""
        found, in_pieces = {}, {}
        for key in sorted(keys):
            stored = self.stored[key]
            pattern = like(key, stored.shape)
            if pattern is not None and is_sharded(pattern):
                found[key] = torch.empty_like(pattern, dtype=stored.dtype)
                in_pieces[key] = found[key]
                continue
            found[key] = torch.empty(stored.shape, dtype=stored.dtype)
            if stored.is_whole:
                found[key].copy_(self.piece(key, next(iter(stored.pieces))))
            elif math.prod(stored.shape):
                in_pieces[key] = found[key]
        if in_pieces:
            from stoker.checkpoint.reshard import read_pieces  # brings in slow packages

            read_pieces(self, in_pieces)
        return found
