"""The shared tensors of a checkpoint, each in one piece or in several."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeAlias

import torch
from torch import Tensor

from stoker.checkpoint.format.manifest import Manifest
from stoker.checkpoint.format.names import tensor_key
from stoker.checkpoint.format.tensor_file import DTYPES_BY_NAME, TensorReader
from stoker.checkpoint.format.validation import check_tiling, reading
from stoker.core.tree import is_sharded
from stoker.storage import Storage

Template: TypeAlias = Callable[[str, tuple[int, ...]], Tensor | None]
"""Returns, for the key and shape of a tensor, a DTensor that is sharded as it should be loaded."""


@dataclass(slots=True)
class StoredTensor:
    """A tensor of a checkpoint; `pieces` maps the offset of each piece to its file and name."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    pieces: dict[tuple[int, ...], tuple[str, str]] = field(default_factory=dict)


class StoredTensors:
    """Reads shared tensors from the files of a checkpoint.

    `tensors` has their types and shapes by key, which costs reading only the file headers.
    """

    def __init__(self, storage: Storage, manifest: Manifest) -> None:
        files = [n for n in manifest.files if n.endswith(".safetensors") and n[:5] != "rank-"]
        self._readers = {name: TensorReader(storage, name) for name in files}
        self.tensors: dict[str, StoredTensor] = {}
        with reading(f"'{storage}'"):
            split = self._add_split(manifest)
            for file, reader in self._readers.items():
                for name, entry in reader.entries.items():
                    if (file, name) not in split:
                        pieces = {(0,) * len(entry.shape): (file, name)}
                        stored = StoredTensor(entry.dtype, entry.shape, pieces)
                        self._add(tensor_key(file, name), stored)

    def _add(self, key: str, stored: StoredTensor) -> None:
        if key in self.tensors:
            raise ValueError(f"'{key[:200]}' is stored twice")
        self.tensors[key] = stored

    def _add_split(self, manifest: Manifest) -> set[tuple[str, str]]:
        """Add the tensors that are stored in pieces; return the file and name of each piece."""
        places: list[tuple[str, str]] = []
        for key, table in manifest.split.items():
            stored = StoredTensor(DTYPES_BY_NAME[table["dtype"]], tuple(table["shape"]))
            shapes = {}
            for piece in table["pieces"]:
                offset, place = tuple(piece["offset"]), (piece["file"], piece["name"])
                entry = self._readers[piece["file"]].entries[piece["name"]]
                if entry.dtype != stored.dtype or len(entry.shape) != len(stored.shape):
                    raise ValueError(f"a piece of '{key[:200]}' has another type or dimension")
                stored.pieces[offset], shapes[offset] = place, entry.shape
                places.append(place)
            check_tiling(shapes, stored.shape, f"'{key[:200]}'")
            self._add(key, stored)
        if len(set(places)) != len(places):
            raise ValueError("a piece of a tensor is listed twice")
        return set(places)

    def piece(self, key: str, offset: tuple[int, ...]) -> Tensor:
        """Return one piece of a tensor as a view of its file."""
        file, name = self.tensors[key].pieces[offset]
        return self._readers[file].view(name)

    def read(
        self, keys: set[str], template: Template = lambda key, shape: None
    ) -> dict[str, Tensor]:
        """Return tensors in new memory, sharded as the template says, unsharded without one."""
        found, in_pieces = {}, {}
        for key in sorted(keys):
            stored = self.tensors[key]
            pattern = template(key, stored.shape)
            if pattern is not None and is_sharded(pattern):
                found[key] = in_pieces[key] = torch.empty_like(pattern, dtype=stored.dtype)
                continue
            found[key] = torch.empty(stored.shape, dtype=stored.dtype)
            if len(stored.pieces) == 1:
                found[key].copy_(self.piece(key, next(iter(stored.pieces))))
            elif math.prod(stored.shape):
                in_pieces[key] = found[key]
        if in_pieces:
            from stoker.checkpoint.read.resharding import read_pieces  # imports slow packages

            read_pieces(self, in_pieces)
        return found
