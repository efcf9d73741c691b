"""Load tensors in another sharding than they were saved in, planned by torch's load planner."""

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

from stoker.checkpoint.read.stored_tensors import StoredTensors


def read_pieces(stored: StoredTensors, into: dict[str, Tensor]) -> None:
    """Fill tensors, sharded or not, from the pieces they overlap; ranks work independently."""
    reader = PieceReader(stored)
    planner = DefaultLoadPlanner(flatten_state_dict=False, flatten_sharded_tensors=False)
    planner.set_up_planner(dict(into), reader.read_metadata())
    reader.read_data(planner.create_local_plan(), planner)


class PieceReader(StorageReader):
    """Adapts `StoredTensors` to the planners of `torch.distributed.checkpoint`."""

    def __init__(self, stored: StoredTensors) -> None:
        self._stored = stored

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """Do nothing: the reader has no state."""

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        """Describe the stored tensors in torch's terms."""
        return Metadata({key: self._describe(key) for key in self._stored.tensors})

    def set_up_storage_reader(
        self, metadata: Metadata, is_coordinator: bool, *args: Any, **kwargs: Any
    ) -> None:
        """Do nothing: there is nothing to set up."""

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        """Return the plan unchanged."""
        return plan

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        """Return the plans unchanged."""
        return plans

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        """Copy each planned part out of its file."""
        for item in plan.items:
            offset = item.storage_index.offset
            assert offset is not None
            target = planner.resolve_tensor(item).detach()
            self._stored.read_piece(
                item.storage_index.fqn, tuple(offset), target, tuple(item.storage_offsets)
            )
            planner.commit_tensor(item, target)
        done: Future[None] = Future()
        done.set_result(None)
        return done

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        """Return whether it could be a checkpoint: any folder could."""
        return os.path.isdir(checkpoint_id)

    def _describe(self, key: str) -> TensorStorageMetadata:
        stored = self._stored.tensors[key]
        chunks = [
            ChunkStorageMetadata(Size(offset), Size(self._stored.piece_shape(key, offset)))
            for offset in stored.pieces
        ]
        return TensorStorageMetadata(TensorProperties(stored.dtype), Size(stored.shape), chunks)
