"""The ranks of a process in each kind of group, such as its stage in a pipeline."""

from collections.abc import Callable
from enum import Enum
from functools import partial, partialmethod
from typing import Any

from stoker import Layout
from stoker.core import dist
from stoker.parallel.layout import MESH_ORDER


class ParallelMode(Enum):
    """Kinds of process groups."""

    GLOBAL = "global"
    DATA = "data"
    MODEL = "model"
    PIPELINE = "pipe"
    TENSOR = "tensor"
    PARALLEL_1D = "1d"
    SEQUENCE = "sequence"
    PARALLEL_2D_ROW, PARALLEL_2D_COL = "2d_row", "2d_col"
    PARALLEL_2P5D_ROW, PARALLEL_2P5D_COL = "2p5d_row", "2p5d_col"
    PARALLEL_2P5D_DEP, PARALLEL_2P5D_XZ = "2p5d_dep", "2p5d_xz"
    PARALLEL_3D_INPUT, PARALLEL_3D_WEIGHT = "3d_input", "3d_weight"
    PARALLEL_3D_OUTPUT = "3d_output"


_DIMS = {
    ParallelMode.GLOBAL: MESH_ORDER,
    ParallelMode.DATA: ("replicate", "shard"),
    ParallelMode.MODEL: ("pipeline", "tensor"),
    ParallelMode.PIPELINE: ("pipeline",),
    ParallelMode.TENSOR: ("tensor",),
    ParallelMode.PARALLEL_1D: ("tensor",),
}
"""The dimensions of the layout that each kind of group spans."""


def _count_of(mode: ParallelMode, ranks: "Ranks") -> int:
    return ranks.get_world_size(mode)


class Ranks:
    """The place of this process in a layout."""

    get_layout: Callable[[], Layout]

    def __init__(self) -> None:
        self.is_launched = False
        self.knows_stage = False
        """Whether the script knows its stage, as one that cuts its own model does."""

    def get_global_rank(self) -> int:
        """Return the rank of this process."""
        return dist.rank()

    def get_ranks_in_group(self, parallel_mode: ParallelMode) -> list[int]:
        """Return the global ranks of the processes in this one's group."""
        if parallel_mode not in _DIMS:
            raise ValueError(
                f"this job has no groups of kind {parallel_mode}: expected one of "
                f"{', '.join(mode.name for mode in _DIMS)}"
            )
        return self.get_layout().peers(dist.rank(), *_DIMS[parallel_mode])

    def get_world_size(self, parallel_mode: ParallelMode = ParallelMode.GLOBAL) -> int:
        """Return the number of processes in a group of this kind."""
        return len(self.get_ranks_in_group(parallel_mode))

    def get_local_rank(self, parallel_mode: ParallelMode) -> int:
        """Return the rank of this process within its group; its stage for PIPELINE."""
        self.knows_stage |= parallel_mode is ParallelMode.PIPELINE
        return self.get_ranks_in_group(parallel_mode).index(dist.rank())

    def is_first_rank(self, parallel_mode: ParallelMode) -> bool:
        """Return whether this process is the first of its group."""
        return self.get_local_rank(parallel_mode) == 0

    def is_last_rank(self, parallel_mode: ParallelMode) -> bool:
        """Return whether this process is the last of its group."""
        return self.get_local_rank(parallel_mode) == self.get_world_size(parallel_mode) - 1

    is_pipeline_first_stage = partialmethod(is_first_rank, ParallelMode.PIPELINE)
    is_pipeline_last_stage = partialmethod(is_last_rank, ParallelMode.PIPELINE)

    def is_initialized(self, parallel_mode: ParallelMode) -> bool:
        """Return whether `launch` has connected groups of this kind."""
        if parallel_mode in (ParallelMode.PIPELINE, ParallelMode.PARALLEL_1D):
            return self.is_launched and self.get_world_size(parallel_mode) > 1
        return self.is_launched and parallel_mode in _DIMS

    def get_group(self, parallel_mode: ParallelMode) -> Any:
        """Return the process group for collectives; None in a single process."""
        return dist.group_of(self.get_ranks_in_group(parallel_mode))

    get_cpu_group = get_group

    data_parallel_size = property(partial(_count_of, ParallelMode.DATA))
    pipeline_parallel_size = property(partial(_count_of, ParallelMode.PIPELINE))
    tensor_parallel_size = property(partial(_count_of, ParallelMode.TENSOR))
    world_size = property(partial(_count_of, ParallelMode.GLOBAL))

    def connect(self) -> None:
        """Connect the groups of all kinds. All processes must call it."""
        self.is_launched = True
        for mode in _DIMS:
            if self.get_world_size(mode) > 1:
                self.get_group(mode)

    def destroy(self) -> None:
        """Leave the other processes."""
        self.is_launched = False
        dist.disconnect()

    def _neighbour(self, parallel_mode: ParallelMode, offset: int) -> int:
        ranks = self.get_ranks_in_group(parallel_mode)
        return ranks[(ranks.index(dist.rank()) + offset) % len(ranks)]

    get_next_global_rank = partialmethod(_neighbour, offset=1)
    get_prev_global_rank = partialmethod(_neighbour, offset=-1)
