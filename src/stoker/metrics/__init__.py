"""Metrics: ``reset``, ``update``, ``compute``; exact over samples and across processes."""

from stoker.core.calls import explain_calls
from stoker.metrics.accuracy import Accuracy
from stoker.metrics.lookup import available, get, metric_class
from stoker.metrics.metric import Mean, Metric

__all__ = ["Accuracy", "Mean", "Metric", "available", "get", "metric_class"]

explain_calls(globals(), __all__)
