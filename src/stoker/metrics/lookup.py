"""Find metrics by name: those of Stoker and every class of torchmetrics."""

from typing import Any

from stoker.core.calls import check_keywords
from stoker.core.errors import did_you_mean
from stoker.metrics.accuracy import Accuracy
from stoker.metrics.metric import Metric

_OWN: dict[str, Any] = {"accuracy": Accuracy}
_SHORT = {
    "acc": "accuracy",
    "f1": "MulticlassF1Score",
    "mae": "MeanAbsoluteError",
    "mse": "MeanSquaredError",
    "mape": "MeanAbsolutePercentageError",
    "r2": "R2Score",
    "iou": "MulticlassJaccardIndex",
    "ppl": "Perplexity",
}
"""Short names of metrics that people use elsewhere."""


def get(name: str, **arguments: Any) -> Metric:
    """Return a new metric: ``get("accuracy", topk=5)``, ``get("MeanSquaredError")``.

    Args:
        name: A lower-case name of a Stoker metric, or the name of a torchmetrics class.
        arguments: Passed to the class.
    """
    found = metric_class(name)
    check_keywords(found, found.__name__, arguments)
    metric: Metric = found(**arguments)
    return metric


def metric_class(name: str) -> Any:
    """Return the class of a metric name."""
    if name in _OWN:
        return _OWN[name]
    classes = _torchmetrics()
    if name not in classes:
        known = [*_OWN, *classes]
        raise ValueError(
            f"there is no metric named {name!r}{did_you_mean(_SHORT.get(name, name), known)} "
            f"(stoker.metrics.available() lists all {len(known)})"
        )
    return classes[name]


def available() -> list[str]:
    """Return all names that `get` accepts; torchmetrics adds its own if it is installed."""
    try:
        return [*_OWN, *sorted(_torchmetrics())]
    except ImportError:
        return [*_OWN]


def _torchmetrics() -> dict[str, Any]:
    """Return the metric classes of the installed torchmetrics by name."""
    try:
        import torchmetrics
        from torchmetrics import classification, regression
    except (ImportError, RuntimeError) as error:  # RuntimeError: incompatible torchvision
        raise ImportError(
            f"torchmetrics cannot be imported ({error}): run 'pip install torchmetrics', and "
            "upgrade or remove a torchvision built for another version of torch"
        ) from error
    return {
        name: value
        for module in (regression, classification, torchmetrics)
        for name, value in vars(module).items()
        if isinstance(value, type) and issubclass(value, torchmetrics.Metric)
    }
