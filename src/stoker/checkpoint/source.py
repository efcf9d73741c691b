"""The shared tensors of a checkpoint, wherever in its files their pieces stand."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from stoker.checkpoint.manifest import Manifest
from stoker.checkpoint.plan import key_of
from stoker.checkpoint.tensorfile import TensorReader
from stoker.checkpoint.tensors import BY_NAME, is_sharded
from stoker.errors import CheckpointError


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

    def read(self, keys: set[str], like: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The tensors ``keys``, in fresh memory: sharded as in ``like``, or else whole."""
        found, in_pieces = {}, {}
        for key in sorted(keys):
            stored, pattern = self.stored[key], like.get(key)
            if pattern is not None and is_sharded(pattern):
                _check_shape(key, stored, pattern)
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


def _check_shape(key: str, stored: Stored, pattern: Tensor) -> None:
    if stored.shape != tuple(pattern.shape):
        shapes = f"{list(stored.shape)} in the checkpoint and {list(pattern.shape)} in this run"
        raise CheckpointError(f"'{key}' has shape {shapes}, expected the same")
