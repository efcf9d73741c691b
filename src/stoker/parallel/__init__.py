"""Split a job over processes: data, sharded, tensor and pipeline parallelism."""

from stoker.parallel.layout import Layout
from stoker.parallel.logical.model import LogicalModel
from stoker.parallel.optimizers import ParameterIndex, shard_like
from stoker.parallel.parallel_model import ParallelModel, wrap_model
from stoker.parallel.pipeline.stages import Stages
from stoker.parallel.ties import local_weights, tied_names

__all__ = [
    "Layout",
    "LogicalModel",
    "ParallelModel",
    "ParameterIndex",
    "Stages",
    "local_weights",
    "shard_like",
    "tied_names",
    "wrap_model",
]
