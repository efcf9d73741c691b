"""The engine and its schedules of micro-batches."""

from stoker.dialects.colossalai.engine.engine import Engine
from stoker.dialects.colossalai.engine.gradient_handler import BaseGradientHandler
from stoker.dialects.colossalai.engine.schedule import (
    BaseSchedule,
    InterleavedPipelineSchedule,
    NonPipelineSchedule,
    NoPipelineSchedule,
    PipelineSchedule,
)

__all__ = [
    "BaseGradientHandler",
    "BaseSchedule",
    "Engine",
    "InterleavedPipelineSchedule",
    "NoPipelineSchedule",
    "NonPipelineSchedule",
    "PipelineSchedule",
]
