"""How a job is split over processes."""

from stoker.parallel.layout import Layout
from stoker.parallel.parallel_model import ParallelModel, placed, wrap_model
from stoker.parallel.parameter_index import ParameterIndex
from stoker.parallel.pipeline.stages import Stages, is_elsewhere

__all__ = [
    "Layout",
    "ParallelModel",
    "ParameterIndex",
    "Stages",
    "is_elsewhere",
    "placed",
    "wrap_model",
]
