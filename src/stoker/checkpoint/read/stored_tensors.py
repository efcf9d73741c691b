"""The shared tensors of a checkpoint, each in one piece or in several."""

from collections.abc import Callable, Iterable, Sequence
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

Template: TypeAlias = Callable[[str, tuple[int, ...], torch.dtype], Tensor | None]
"""Returns the tensor to read into, for a key, shape and dtype; None to read into new memory.

One on the meta device is not read. A DTensor receives the shard of this process.
"""


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

    def piece_shape(self, key: str, offset: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape of one piece of a tensor."""
        file, name = self.tensors[key].pieces[offset]
        return self._readers[file].entries[name].shape

    def read_piece(
        self, key: str, offset: tuple[int, ...], target: Tensor, begin: Sequence[int] = ()
    ) -> None:
        """Copy the part of a piece that begins at ``begin`` and has the target's shape."""
        file, name = self.tensors[key].pieces[offset]
        self._readers[file].read_into(name, target, begin)

    @torch.no_grad()
    def read(
        self, keys: Iterable[str], template: Template = lambda key, shape, dtype: None
    ) -> dict[str, Tensor]:
        """Return tensors in the memory that the template says, unsharded without one."""
        found, in_pieces = {}, {}
        for key in sorted(keys):
            stored = self.tensors[key]
            target = template(key, stored.shape, stored.dtype)
            if target is None:
                target = torch.empty(stored.shape, dtype=stored.dtype)
            found[key] = target
            if target.is_meta:
                continue
            if is_sharded(target) or len(stored.pieces) > 1:
                in_pieces[key] = target
            else:
                self.read_piece(key, next(iter(stored.pieces)), target)
        in_pieces = {key: one for key, one in in_pieces.items() if one.numel()}
        if in_pieces:
            from stoker.checkpoint.read.resharding import read_pieces  # imports slow packages

            read_pieces(self, in_pieces)
        return found
