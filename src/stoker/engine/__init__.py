"""A model and what trains it, as an object with PyTorch-shaped calls."""

from stoker.engine.engine import Engine, bare
from stoker.engine.own_loop import ForwardBackward
from stoker.engine.pipeline import PipelineSchedule, schedule_of
from stoker.engine.schedule import PlainSchedule, Schedule
from stoker.engine.uncompiled import postpone_compiler

__all__ = [
    "Engine",
    "ForwardBackward",
    "PipelineSchedule",
    "PlainSchedule",
    "Schedule",
    "bare",
    "schedule_of",
]

postpone_compiler()
