"""A model and what trains it, as an object with PyTorch-shaped calls."""

from stoker.engine.engine import Engine, bare
from stoker.engine.own_loop import ForwardBackward
from stoker.engine.pipeline_schedule import PipelineSchedule, schedule_of
from stoker.engine.schedule import PlainSchedule, Schedule

__all__ = [
    "Engine",
    "ForwardBackward",
    "PipelineSchedule",
    "PlainSchedule",
    "Schedule",
    "bare",
    "schedule_of",
]
