"""Trainers and hooks."""

from stoker.dialects.libai.engine import hooks
from stoker.dialects.libai.engine.default import DefaultTrainer, default_setup
from stoker.dialects.libai.engine.trainer import EagerTrainer, GraphTrainer, HookBase, TrainerBase

__all__ = [
    "DefaultTrainer",
    "EagerTrainer",
    "GraphTrainer",
    "HookBase",
    "TrainerBase",
    "default_setup",
    "hooks",
]
