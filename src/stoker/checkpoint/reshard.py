"""Tensors put together from pieces that were cut for another number of processes.

torch's planner says which part of which piece goes where; this is the storage under it.
"""

import os
from typing import Any

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

from stoker.checkpoint.source import Source


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
