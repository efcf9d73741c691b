"""Ranks and layouts."""

import os
from typing import Any

from stoker import Layout
from stoker.core import dist as _dist

get_rank, get_world_size = _dist.rank, _dist.world_size
is_main_process, synchronize = _dist.is_main, _dist.barrier


def get_local_rank() -> int:
    """Return the rank of this process on this machine."""
    return int(os.environ.get("LOCAL_RANK", _dist.rank()))


def is_last_process() -> bool:
    """Return whether this is the last rank."""
    return _dist.rank() == _dist.world_size() - 1


def layout_of(cfg: Any) -> Layout:
    """Return the layout of ``dist`` and ``zero_optimization`` in a ``train`` section."""
    sizes = cfg["dist"]
    staged = ("pipeline_num_layers", "custom_pipeline_stage_id")
    if sizes["pipeline_parallel_size"] > 1 or any(sizes[key] is not None for key in staged):
        raise ValueError(
            "train.dist asks for a pipeline, and a model that returns its own losses cannot be cut "
            "into stages: use tensor_parallel_size, or Stoker's Layout(pipeline=…)"
        )
    data, tensor = sizes["data_parallel_size"], sizes["tensor_parallel_size"]
    available = _dist.world_size()
    if data > 1 and data * tensor != available:
        raise ValueError(
            f"train.dist requests {data} (data) x {tensor} (tensor) = {data * tensor} processes, "
            f"but there are {available}"
        )
    ways = -1 if available > tensor else 1
    sharded = cfg["zero_optimization"]["enabled"]
    return Layout(
        replicate=1 if sharded else ways, shard=ways if sharded else 1, tensor=tensor
    ).filled(available)
