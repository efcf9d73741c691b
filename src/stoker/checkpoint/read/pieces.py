"""The shared tensors of a checkpoint, wherever in its files their pieces stand."""

import math
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch import Size, Tensor
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import LoadPlan, LoadPlanner
from torch.distributed.checkpoint.storage import StorageReader
from torch.futures import Future

from stoker.checkpoint.format.manifest import Manifest
from stoker.checkpoint.format.tensor_file import BY_NAME, TensorReader
from stoker.checkpoint.sharding.write_plan import key_of
from stoker.core.tree import is_sharded

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
            from stoker.checkpoint.read.pieces import read_pieces  # brings in slow packages

            read_pieces(self, in_pieces)
        return found


def read_pieces(source: Source, into: dict[str, Tensor]) -> None:
    """Fill tensors, whole or sharded; no process has to wait for another."""
    reader = SafetensorsReader(source)
    planner = DefaultLoadPlanner(flatten_state_dict=False, flatten_sharded_tensors=False)
    planner.set_up_planner(dict(into), reader.read_metadata())
    reader.read_data(planner.create_local_plan(), planner)


class SafetensorsReader(StorageReader):
    """The pieces of a checkpoint of ours, for the planners of `torch.distributed.checkpoint`."""

    def __init__(self, source: Source) -> None:
        self._source = source

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """There is nothing to forget."""

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        """What is stored, in torch's words."""
        return Metadata({key: self._describe(key) for key in self._source.stored})

    def set_up_storage_reader(
        self, metadata: Metadata, is_coordinator: bool, *args: Any, **kwargs: Any
    ) -> None:
        """There is nothing to set up."""

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        """The plan as it is."""
        return plan

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        """The plans as they are."""
        return plans

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        """Copy each planned part out of its file."""
        for item in plan.items:
            offset = item.storage_index.offset
            assert offset is not None
            part = self._source.piece(item.storage_index.fqn, tuple(offset))
            for dim, (start, length) in enumerate(
                zip(item.storage_offsets, item.lengths, strict=True)
            ):
                part = part.narrow(dim, start, length)
            target = planner.resolve_tensor(item).detach()
            target.copy_(part)
            planner.commit_tensor(item, target)
        done: Future[None] = Future()
        done.set_result(None)
        return done

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        """Whether it could be a checkpoint of ours: any folder could."""
        return os.path.isdir(checkpoint_id)

    def _describe(self, key: str) -> TensorStorageMetadata:
        stored = self._source.stored[key]
        chunks = [
            ChunkStorageMetadata(Size(offset), self._source.piece(key, offset).shape)
            for offset in stored.pieces
        ]
        return TensorStorageMetadata(TensorProperties(stored.dtype), Size(stored.shape), chunks)
