"""Stoker: a training framework for PyTorch.

An `Engine` runs the model, a `Trainer` runs the loop, `Hook`s act at named points of it.

Names are imported when they are first used, so that the command line answers without torch; the
types of all of them are in ``__init__.pyi``.
"""

from importlib import import_module
from typing import Any

from stoker.core.calls import explained
from stoker.core.foreign_words import missing_name

__version__ = "0.1.0"

_HOMES = {
    "Engine": "engine",
    "Every": "core.every",
    "Hook": "hooks",
    "Layout": "parallel",
    "Metric": "metrics",
    "CheckpointError": "core.errors",
    "NonFiniteError": "core.errors",
    "Preempted": "core.errors",
    "RankFailed": "core.errors",
    "ForwardBackward": "engine",
    "Output": "core.types",
    "PipelineSchedule": "engine",
    "PlainSchedule": "engine",
    "RetrySchedule": "engine",
    "Priority": "hooks",
    "Run": "run",
    "Schedule": "engine",
    "StepContext": "engine",
    "Step": "step",
    "StokerError": "core.errors",
    "Trainer": "trainer",
    "load_weights": "resume.weights",
    "seed_all": "core.seed",
}
_MODULES = ("config", "data", "events", "hooks", "launch", "metrics")

__all__ = [
    "CheckpointError",
    "Engine",
    "Every",
    "ForwardBackward",
    "Hook",
    "Layout",
    "Metric",
    "NonFiniteError",
    "Output",
    "PipelineSchedule",
    "PlainSchedule",
    "Preempted",
    "Priority",
    "RankFailed",
    "RetrySchedule",
    "Run",
    "Schedule",
    "Step",
    "StepContext",
    "StokerError",
    "Trainer",
    "config",
    "data",
    "events",
    "hooks",
    "launch",
    "load_weights",
    "metrics",
    "seed_all",
]  # without nn: a star import must not hide torch.nn


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        value = explained(getattr(import_module(f"stoker.{_HOMES[name]}"), name))
    elif name in (*_MODULES, "nn", "testing", "dialects"):
        value = import_module(f"stoker.{name}")
    else:
        raise missing_name("stoker", name, __all__)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
