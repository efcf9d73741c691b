"""Ranks and layouts."""

import os
from dataclasses import dataclass
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


@dataclass
class DistUtil:
    """How the job is split; Stoker's dialect has no pipelines."""

    data_parallel_size: int = 1
    tensor_parallel_size: int = 1
    device_type: str = "cuda"


_current: list[DistUtil] = []


def setup_dist_util(cfg: Any) -> None:
    """Use the sizes and the device of a ``train.dist`` section from here on."""
    layout = _layout(cfg, sharded=False)
    kind = cfg.get("device_type") or "cuda"
    _current[:] = [DistUtil(layout.data_ranks, layout.tensor, kind)]


def get_dist_util() -> DistUtil:
    """Return how the job is split: as `setup_dist_util` has set, or else all ranks by data."""
    return _current[0] if _current else DistUtil(_dist.world_size())


def get_data_parallel_rank() -> int:
    """Return which part of the data this rank reads."""
    return _dist.rank() // get_dist_util().tensor_parallel_size


def get_data_parallel_size() -> int:
    """Return in how many parts the data is read."""
    return get_dist_util().data_parallel_size


def get_tensor_parallel_size() -> int:
    """Return on how many ranks a layer is split."""
    return get_dist_util().tensor_parallel_size


def broadcast_py_object(obj: Any, src: int = 0) -> Any:
    """Return the object of rank ``src``."""
    return _dist.broadcast_object(obj, src)


def device() -> str:
    """Return the device for an engine."""
    kind = get_dist_util().device_type
    return "auto" if kind == "cuda" else kind


def layout_of(cfg: Any) -> Layout:
    """Return the layout of ``dist`` and ``zero_optimization`` in a ``train`` section."""
    return _layout(cfg["dist"], sharded=cfg["zero_optimization"]["enabled"])


def _layout(sizes: Any, *, sharded: bool) -> Layout:
    if sizes["pipeline_parallel_size"] > 1:
        raise ValueError(
            "train.dist asks for a pipeline, and a model that returns its own losses cannot be cut "
            "into stages: use tensor_parallel_size, or Stoker's Layout(pipeline=…)"
        )
    data, tensor = sizes["data_parallel_size"], sizes["tensor_parallel_size"]
    available = _dist.world_size()
    if data > 1 and data * tensor != available:
        raise ValueError(
            f"train.dist requests {data} (data) x {tensor} (tensor) = {data * tensor} processes, "
            f"but there are {available}: start as many, or set train.dist.data_parallel_size=1 to "
            "use those that there are"
        )
    ways = -1 if available > tensor else 1
    copies, shards = (1, ways) if sharded else (ways, 1)
    return Layout(replicate=copies, shard=shards, tensor=tensor).filled(available)
