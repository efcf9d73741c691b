"""PyTorch training on Orca's names."""

from stoker.dialects.orca.learn.pytorch.estimator import Estimator

__all__ = ["Estimator"]
