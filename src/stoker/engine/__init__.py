"""A model and what trains it, as an object with PyTorch-shaped calls."""

from stoker.engine.engine import Engine, bare
from stoker.engine.schedule import PlainSchedule, Schedule

__all__ = ["Engine", "PlainSchedule", "Schedule", "bare"]
