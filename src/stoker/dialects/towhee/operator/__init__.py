"""Operators that can be trained."""

from stoker.dialects.towhee.operator.base import NNOperator, setup_trainer, train

__all__ = ["NNOperator", "setup_trainer", "train"]
