"""Metrics: ``reset / update / compute``, weighted by samples, right across processes."""

from stoker.metrics.accuracy import Accuracy
from stoker.metrics.by_name import available, get, kind_of
from stoker.metrics.metric import Mean, Metric

__all__ = ["Accuracy", "Mean", "Metric", "available", "get", "kind_of"]
