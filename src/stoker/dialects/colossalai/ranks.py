"""The ranks of a process in each kind of group, such as its stage in a pipeline.

Ranks are numbered stage by stage, and within a stage by shards of the data:
``rank = (stage * data_ranks + data_rank) * tensor_ranks + tensor_rank``.
"""

from enum import Enum
from typing import Any

import torch.distributed as c10d

from stoker import Layout
from stoker.core import dist


class ParallelMode(Enum):
    """Kinds of process groups."""

    GLOBAL = "global"
    DATA = "data"
    MODEL = "model"
    PIPELINE = "pipe"
    TENSOR = "tensor"
    PARALLEL_1D = "1d"
    SEQUENCE = "sequence"
    SEQUENCE_DP = "sequence_dp"
    PARALLEL_2D_ROW = "2d_row"
    PARALLEL_2D_COL = "2d_col"
    PARALLEL_2P5D_ROW = "2p5d_row"
    PARALLEL_2P5D_COL = "2p5d_col"
    PARALLEL_2P5D_DEP = "2p5d_dep"
    PARALLEL_2P5D_XZ = "2p5d_xz"
    PARALLEL_3D_INPUT = "3d_input"
    PARALLEL_3D_WEIGHT = "3d_weight"
    PARALLEL_3D_OUTPUT = "3d_output"


_SPLIT = (ParallelMode.DATA, ParallelMode.MODEL, ParallelMode.PIPELINE, ParallelMode.TENSOR)


class Ranks:
    """The place of this process in a layout."""

    def __init__(self) -> None:
        self.is_launched = False
        self.knows_stage = False
        """Whether the script has asked for the stage of this process, as one that cuts its own
        model does."""
        self._groups: dict[tuple[int, ...], Any] = {}
        self._world: Any = None

    def get_layout(self) -> Layout:
        """Return the layout of the job."""
        raise NotImplementedError

    def get_global_rank(self) -> int:
        """Return the rank of this process."""
        return dist.rank()

    def get_ranks_in_group(self, parallel_mode: ParallelMode) -> list[int]:
        """Return the global ranks of the processes in this one's group."""
        layout = self.get_layout()
        data, tensor = layout.data_ranks, layout.tensor
        rest, of_tensor = divmod(dist.rank(), tensor)
        stage, of_data = divmod(rest, data)
        stages, shards, parts = range(layout.pipeline), range(data), range(tensor)
        kept = {
            ParallelMode.GLOBAL: (stages, shards, parts),
            ParallelMode.DATA: ([stage], shards, [of_tensor]),
            ParallelMode.MODEL: (stages, [of_data], parts),
            ParallelMode.PIPELINE: (stages, [of_data], [of_tensor]),
            ParallelMode.TENSOR: ([stage], [of_data], parts),
            ParallelMode.PARALLEL_1D: ([stage], [of_data], parts),
        }
        if parallel_mode not in kept:
            raise ValueError(
                f"this job has no groups of kind {parallel_mode}: expected one of "
                f"{', '.join(mode.name for mode in kept)}"
            )
        chosen = kept[parallel_mode]
        return [
            (s * data + d) * tensor + t for s in chosen[0] for d in chosen[1] for t in chosen[2]
        ]

    def get_world_size(self, parallel_mode: ParallelMode = ParallelMode.GLOBAL) -> int:
        """Return the number of processes in a group of this kind."""
        return len(self.get_ranks_in_group(parallel_mode))

    def get_local_rank(self, parallel_mode: ParallelMode) -> int:
        """Return the rank of this process within its group; its stage for PIPELINE."""
        self.knows_stage |= parallel_mode is ParallelMode.PIPELINE
        return self.get_ranks_in_group(parallel_mode).index(dist.rank())

    def get_next_global_rank(self, parallel_mode: ParallelMode) -> int:
        """Return the global rank of the next process in the group; after the last, the first."""
        return self._neighbour(parallel_mode, 1)

    def get_prev_global_rank(self, parallel_mode: ParallelMode) -> int:
        """Return the global rank of the previous process in the group."""
        return self._neighbour(parallel_mode, -1)

    def is_first_rank(self, parallel_mode: ParallelMode) -> bool:
        """Return whether this process is the first of its group."""
        return self.get_local_rank(parallel_mode) == 0

    def is_last_rank(self, parallel_mode: ParallelMode) -> bool:
        """Return whether this process is the last of its group."""
        return self.get_local_rank(parallel_mode) == self.get_world_size(parallel_mode) - 1

    def is_pipeline_first_stage(self, ignore_virtual: bool = False) -> bool:
        """Return whether this process has the first stage."""
        return self.is_first_rank(ParallelMode.PIPELINE)

    def is_pipeline_last_stage(self, ignore_virtual: bool = False) -> bool:
        """Return whether this process has the last stage."""
        return self.is_last_rank(ParallelMode.PIPELINE)

    def is_initialized(self, parallel_mode: ParallelMode) -> bool:
        """Return whether `launch` has connected groups of this kind."""
        always = (ParallelMode.GLOBAL, ParallelMode.DATA, ParallelMode.MODEL, ParallelMode.TENSOR)
        in_use = parallel_mode in (ParallelMode.PIPELINE, ParallelMode.PARALLEL_1D)
        more = in_use and self.get_world_size(parallel_mode) > 1
        return self.is_launched and (parallel_mode in always or more)

    def get_group(self, parallel_mode: ParallelMode) -> Any:
        """Return the process group of torch.distributed; None in a single process."""
        ranks = self.get_ranks_in_group(parallel_mode)
        if dist.world_size() == 1:
            return None
        if len(ranks) == dist.world_size():
            return c10d.group.WORLD
        if self._world is not c10d.group.WORLD:  # connected again
            self._world = c10d.group.WORLD
            self._groups.clear()
        if tuple(ranks) not in self._groups:
            # Only the members connect: the others call this for groups of their own.
            made = c10d.new_group(ranks, use_local_synchronization=True)
            self._groups[tuple(ranks)] = made
        return self._groups[tuple(ranks)]

    get_cpu_group = get_group

    data_parallel_size = property(
        lambda self: self.get_world_size(ParallelMode.DATA), doc="The number of data shards."
    )
    pipeline_parallel_size = property(
        lambda self: self.get_world_size(ParallelMode.PIPELINE), doc="The number of stages."
    )
    tensor_parallel_size = property(
        lambda self: self.get_world_size(ParallelMode.TENSOR), doc="The parts of each layer."
    )
    world_size = property(lambda self: dist.world_size(), doc="The number of processes.")

    def connect(self) -> None:
        """Connect the groups of all kinds. All processes must call it."""
        self.is_launched = True
        for mode in _SPLIT:
            if self.get_world_size(mode) > 1:
                self.get_group(mode)

    def destroy(self) -> None:
        """Leave the other processes."""
        self._groups.clear()
        self.is_launched = False
        dist.disconnect()

    def _neighbour(self, parallel_mode: ParallelMode, offset: int) -> int:
        ranks = self.get_ranks_in_group(parallel_mode)
        return ranks[(ranks.index(dist.rank()) + offset) % len(ranks)]
