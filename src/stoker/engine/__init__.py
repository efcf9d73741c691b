"""`Engine`: a model and what trains it, with PyTorch-shaped calls."""

from stoker.engine.engine import Engine, unwrap
from stoker.engine.forward_backward import ForwardBackward
from stoker.engine.logical_schedule import LogicalSchedule, LogicalStep
from stoker.engine.pipeline_schedule import PipelineSchedule, schedule_for
from stoker.engine.retry_schedule import RetrySchedule
from stoker.engine.schedule import PlainSchedule, Schedule, StepContext

__all__ = [
    "Engine",
    "ForwardBackward",
    "LogicalSchedule",
    "LogicalStep",
    "PipelineSchedule",
    "PlainSchedule",
    "RetrySchedule",
    "Schedule",
    "StepContext",
    "schedule_for",
    "unwrap",
]
