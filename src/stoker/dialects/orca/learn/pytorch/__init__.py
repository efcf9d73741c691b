"""PyTorch training."""

from stoker.dialects.orca.learn.pytorch.estimator import Estimator

__all__ = ["Estimator"]
