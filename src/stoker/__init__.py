"""Stoker: a training framework for PyTorch.

An `Engine` runs the model, a `Trainer` runs the loop, `Hook`s act at named points of it.
"""

from stoker import data, events, hooks, metrics
from stoker import nn as nn  # not in __all__: a star import must not hide torch.nn
from stoker.engine import Engine, PlainSchedule, Schedule
from stoker.errors import NonFiniteError, StokerError
from stoker.every import Every
from stoker.hooks import Hook, Priority
from stoker.metrics import Metric
from stoker.parallel import Layout
from stoker.run import Run
from stoker.seed import seed_all
from stoker.step import Step
from stoker.trainer import Trainer
from stoker.types import Output

__version__ = "0.1.0"

__all__ = [
    "Engine",
    "Every",
    "Hook",
    "Layout",
    "Metric",
    "NonFiniteError",
    "Output",
    "PlainSchedule",
    "Priority",
    "Run",
    "Schedule",
    "Step",
    "StokerError",
    "Trainer",
    "data",
    "events",
    "hooks",
    "metrics",
    "seed_all",
]
