"""This process among the others."""

import os
from typing import Any

from stoker import Layout
from stoker.core import dist as _dist

get_rank, get_world_size = _dist.rank, _dist.world_size
is_main_process, synchronize = _dist.is_main, _dist.barrier


def get_local_rank() -> int:
    """The number of this process among those on this machine."""
    return int(os.environ.get("LOCAL_RANK", _dist.rank()))


def is_last_process() -> bool:
    """Whether this is the last one."""
    return _dist.rank() == _dist.world_size() - 1


def layout_of(cfg: Any) -> Layout:
    """The ``dist`` and ``zero_optimization`` of a config's ``train`` section as a layout."""
    sizes = cfg["dist"]
    staged = ("pipeline_num_layers", "custom_pipeline_stage_id")
    if sizes["pipeline_parallel_size"] > 1 or any(sizes[key] is not None for key in staged):
        raise ValueError(
            "train.dist asks for a pipeline, and a model that returns its own losses cannot be cut "
            "into stages: use tensor_parallel_size, or Stoker's Layout(pipeline=…)"
        )
    data, tensor = sizes["data_parallel_size"], sizes["tensor_parallel_size"]
    whole = _dist.world_size()
    if data > 1 and data * tensor != whole:
        raise ValueError(
            f"train.dist asks for {data} (data) x {tensor} (tensor) = {data * tensor} processes, "
            f"but there are {whole}"
        )
    ways = -1 if whole > tensor else 1
    sharded = cfg["zero_optimization"]["enabled"]
    return Layout(
        replicate=1 if sharded else ways, shard=ways if sharded else 1, tensor=tensor
    ).filled(whole)
