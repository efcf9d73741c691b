"""Metrics by name: our own, and every class of torchmetrics."""

from typing import Any

from stoker.core.errors import did_you_mean
from stoker.metrics.accuracy import Accuracy
from stoker.metrics.metric import Metric

_OWN: dict[str, Any] = {"accuracy": Accuracy}


def get(name: str, **arguments: Any) -> Metric:
    """The metric of that name: ``get("accuracy", topk=5)``, ``get("MeanSquaredError")``.

    Lower-case names are Stoker's own, others are classes of torchmetrics; the arguments go to
    the class.
    """
    made: Metric = kind_of(name)(**arguments)
    return made


def kind_of(name: str) -> Any:
    """The class behind a name that `get` takes."""
    if name in _OWN:
        return _OWN[name]
    classes = _torchmetrics()
    if name not in classes:
        known = [*_OWN, *classes]
        raise ValueError(
            f"no metric is named {name!r}{did_you_mean(name, known)} "
            f"(stoker.metrics.available() lists all {len(known)})"
        )
    return classes[name]


def available() -> list[str]:
    """Every name that `get` takes; without torchmetrics, those of Stoker's own."""
    try:
        return [*_OWN, *sorted(_torchmetrics())]
    except ImportError:
        return [*_OWN]


def _torchmetrics() -> dict[str, Any]:
    """The metric classes that this torchmetrics really has, by name."""
    try:
        import torchmetrics
        from torchmetrics import classification, regression
    except (
        ImportError,
        RuntimeError,
    ) as error:  # RuntimeError: a torchvision that does not fit torch
        raise ImportError(
            f"torchmetrics cannot be imported ({error}): pip install torchmetrics, and remove a "
            "torchvision that was made for another torch"
        ) from error
    return {
        name: value
        for module in (regression, classification, torchmetrics)
        for name, value in vars(module).items()
        if isinstance(value, type) and issubclass(value, torchmetrics.Metric)
    }
