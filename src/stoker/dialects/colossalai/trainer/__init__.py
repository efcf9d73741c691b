"""The trainer, its hooks and its metrics."""

from stoker.dialects.colossalai.trainer import hooks, metric
from stoker.dialects.colossalai.trainer.trainer import Trainer

__all__ = ["Trainer", "hooks", "metric"]
