"""`PipelinableContext`: cut a model into pipeline stages, of which each process keeps its own."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from torch import nn
from torch.nn.modules.module import register_module_module_registration_hook

from stoker.parallel.pipeline.cut_stages import LayerList
from stoker.parallel.pipeline.stage_plan import balance


class PipelinableContext:
    """Remember the model built in a ``with`` block, list its layers, and return those of a stage.

    ``policy`` is "balanced" by parameters, "uniform" by layers, "customized" at each "SPLIT_NODE"
    of the list, or the ranges of layers of each rank: ``{0: [(0, 3)], 1: [(3, 8)]}``.
    """

    def __init__(self, policy: str | Mapping[int, Any] = "balanced") -> None:
        self.policy = policy
        self._built: list[tuple[nn.Module, nn.Module | None]] = []

    def __enter__(self) -> "PipelinableContext":
        self._handle = register_module_module_registration_hook(
            lambda parent, name, child: self._built.append((parent, child))
        )
        return self

    def __exit__(self, *error: object) -> None:
        self._handle.remove()

    def to_layer_list(self, exec_seq: Sequence[Any] | None = None) -> None:
        """List the layers in the order of the model, or of ``exec_seq``; see `LayerList`."""
        inner = {child for _, child in self._built}
        outer = [parent for parent, _ in self._built if parent not in inner]
        if not outer:
            raise ValueError("no model with layers was built in the PipelinableContext")
        self._list = LayerList(outer[-1], exec_seq)

    def partition(self, num_chunks: int, pipeline_size: int, rank: int) -> nn.Module:
        """Return the stage of a rank; an `nn.ModuleList` of them for several chunks."""
        found, stages = self._list, num_chunks * pipeline_size
        ranges: Any = self.policy.values() if isinstance(self.policy, Mapping) else ()
        if self.policy == "uniform":
            ranges = partition_uniform(len(found.layers), pipeline_size, num_chunks)
        starts = sorted(start for own in ranges for start, _ in own)
        if self.policy == "customized":
            starts = [0, *found.cuts]
        elif self.policy == "balanced":
            starts = balance(found.sizes(), stages)
        if len(starts) != stages:
            known = "'balanced', 'uniform', 'customized' or a dict of ranges"
            raise ValueError(f"policy {self.policy!r} makes no {stages} stages: expected {known}")
        own = found.stages(starts, pipeline_size, rank)
        return own[0] if num_chunks == 1 else nn.ModuleList(own)


def partition_uniform(
    num_items: int, pipeline_parallel_size: int, num_chunks: int
) -> list[list[tuple[int, int]]]:
    """Return the ranges of items of each rank; the last ranks get one more if there is a rest."""
    if num_items % num_chunks:
        raise ValueError(f"{num_items} layers cannot be divided into {num_chunks} equal chunks")
    items, size = num_items // num_chunks, pipeline_parallel_size
    ends = [n * (items // size) + max(0, n - size + items % size) for n in range(size + 1)]
    firsts = range(0, num_items, items)
    return [[(a + first, b + first) for first in firsts] for a, b in pairwise(ends)]
