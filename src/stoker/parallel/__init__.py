"""Split a job over processes: data, sharded, tensor and pipeline parallelism."""

from stoker.parallel.layout import Layout
from stoker.parallel.optimizers import ParameterIndex, shard_like
from stoker.parallel.parallel_model import ParallelModel, wrap_model
from stoker.parallel.pipeline.stages import Stages, is_remote

__all__ = [
    "Layout",
    "ParallelModel",
    "ParameterIndex",
    "Stages",
    "is_remote",
    "shard_like",
    "wrap_model",
]
