"""`Metrics`: metrics over training and validation data."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from functools import partial
from typing import Any, Literal

from torch import Tensor, nn

from stoker import metrics
from stoker.core import dist
from stoker.core.tree import map_tensors
from stoker.core.types import Output, Scalar, Stateful
from stoker.hooks.base.hook import Hook, Priority
from stoker.metrics import Accuracy, Metric
from stoker.metrics.metric import FunctionMetric, MetricCollection
from stoker.parallel import Stages
from stoker.run import Run


class Metrics(Hook):
    """Compute metrics over validation data, training data, or both.

        Metrics("accuracy")                                     val/accuracy
        Metrics(top5=Accuracy(5), on="both")                    train/top5, val/top5
        Metrics(f1=metrics.get("MulticlassF1Score", num_classes=10))
        Metrics(mae=lambda outputs, targets: (outputs - targets).abs().mean())
        Metrics("accuracy", heads=["digit", "parity"])          val/digit/accuracy, …

    Metrics reuse the forward pass of the loop: each batch calls ``metric.update(outputs,
    targets)``. Over training data a metric covers the current epoch so far.

    Args:
        metrics: Names, or metric objects, which are reported under their lower-case class name.
            A plain function is called once, with all outputs and targets of the pass.
        on: The data to compute them on: ``"val"``, ``"train"`` or ``"both"``.
        read: A function that extracts what ``update`` gets from an `Output`. The default passes
            ``outputs`` (or their ``"logits"`` if they have any) and ``targets``.
        heads: The heads of a model whose outputs and targets are dicts by head; each head gets
            all metrics.
        named: Metrics by the name to report them under.
    """

    priority = Priority.MEASURE
    same_on_all_ranks = True

    def __init__(
        self,
        *metrics: str | Metric | Callable[[Any, Any], Any],
        on: Literal["val", "train", "both"] = "val",
        read: Callable[[Output], tuple[Any, Any]] | None = None,
        heads: Sequence[str] = (),
        **named: str | Metric | Callable[[Any, Any], Any],
    ) -> None:
        if on not in ("val", "train", "both"):
            raise ValueError(f"on must be 'val', 'train' or 'both', got {on!r}")
        pairs = [(_default_name(m), m) for m in metrics] + list(named.items())
        repeated = [name for name, count in Counter(name for name, _ in pairs).items() if count > 1]
        if repeated:
            raise ValueError(
                f"two metrics are named {repeated[0]!r}: give one a name, Metrics(name=…)"
            )
        built = {name: _as_metric(metric) for name, metric in pairs}
        if not built:
            raise ValueError("Metrics needs at least one metric, such as Metrics('accuracy')")
        self._heads = {f"{head}/{name}": head for head in _checked_heads(heads) for name in built}
        if self._heads:
            built = {f"{h}/{n}": deepcopy(m) for h in heads for n, m in built.items()}
        self._read = read or _outputs_and_targets
        self._val = MetricCollection(built if on != "train" else {})
        self._train = MetricCollection(deepcopy(built) if on != "val" else {})
        for metric in self._train.values():
            persistent: Any = getattr(metric, "persistent", None)
            if callable(persistent):
                persistent(True)  # by default torchmetrics excludes its counts from state_dict
        self.reads_outputs = {"val": ("val",), "train": ("train",), "both": ("train", "val")}[on]
        self._updated = False
        self._stages: Stages | None = None
        self.produces = (*(f"train/{n}" for n in self._train), *(f"val/{n}" for n in self._val))

    @property
    def unsaved(self) -> dict[str, Metric]:
        """The training metrics that have no ``state_dict``, by name."""
        return {n: one for n, one in self._train.items() if not isinstance(one, Stateful)}

    def attach(self, run: Run) -> None:
        """Move metrics to the device and register the training metrics as gauges."""
        self._stages, copies = run.engine.stages, run.engine.parallel_model.data_group
        sees_all = run.engine.parallel_model.logical_ranks is not None
        for metric in [*self._train.values(), *self._val.values()]:
            if isinstance(metric, nn.Module):
                metric.to(run.engine.device)
            for module in _torchmetrics_in(metric) if self._stages is not None or sees_all else ():
                module.process_group = copies
                if copies is None:
                    module.distributed_available_fn = _not_distributed
            probabilities = isinstance(run.engine.given_criterion, nn.BCELoss)
            if probabilities and isinstance(metric, Accuracy) and metric.threshold == 0.0:
                raise ValueError(
                    "the criterion is BCELoss, so outputs are probabilities and not logits: use "
                    "Accuracy(threshold=0.5)"
                )
        for name, metric in self._train.items():
            run.events.gauge(f"train/{name}", partial(self._running_value, metric))

    def before_epoch(self, run: Run) -> None:
        """Reset the training metrics."""
        self._updated = False
        self._train.begin_pass()

    def after_step(self, run: Run) -> None:
        """Update the training metrics."""
        if self._train and run.updated:
            self._updated = True
            for output in run.outputs:
                self._update(self._train, output)

    def after_train_epoch(self, run: Run) -> None:
        """Record the training metrics of the epoch."""
        for name, metric in self._train.items() if self._updated else ():
            for key, value in _flatten(name, self._compute(metric)):
                run.metrics[f"train/{key}"] = value

    def before_val(self, run: Run) -> None:
        """Reset the validation metrics."""
        self._val.begin_pass()

    def after_val_step(self, run: Run) -> None:
        """Update the validation metrics."""
        for output in run.outputs:
            self._update(self._val, output)

    def after_val(self, run: Run) -> None:
        """Record the validation metrics of the loader."""
        self._val.end_pass()
        for name, metric in self._val.items():
            for key, value in _flatten(name, self._compute(metric)):
                run.record(f"{run.val_name}/{key}", value)

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the training metrics that have a ``state_dict``."""
        states = {
            name: metric.state_dict()
            for name, metric in self._train.items()
            if isinstance(metric, Stateful)
        }
        counts = {name: getattr(metric, "update_count", 0) for name, metric in self._train.items()}
        return {"updated": self._updated, "train": states, "counts": counts}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the training metrics."""
        self._updated = state["updated"]
        for name, saved in state["train"].items():
            metric: Any = self._train.get(name)
            if isinstance(metric, Stateful):
                metric.load_state_dict(saved)
                if hasattr(metric, "_update_count"):  # torchmetrics warns if it is 0
                    metric._update_count = state["counts"][name]

    def _update(self, metrics: MetricCollection, output: Output) -> None:
        if output.weight == 0:  # a padding batch
            return
        outputs, targets = self._read(output)
        outputs = map_tensors(Tensor.detach, outputs)  # a metric must not store the graph
        metrics.update_all(outputs, targets, self._heads)

    def _compute(self, metric: Metric) -> Any:
        """Return the value over all ranks; pipeline stages without outputs receive it."""
        if self._stages is None or not _torchmetrics_in(metric):
            return metric.compute()
        value = metric.compute() if self._stages.has_last else None
        return next((found for found in dist.all_gather_object(value) if found is not None), None)

    def _running_value(self, metric: Metric) -> Scalar | None:
        """Return the value over the epoch so far, or None if it is not a single number."""
        if not self._updated:
            return None
        value = self._compute(metric)
        several = isinstance(value, dict) or (isinstance(value, Tensor) and value.numel() != 1)
        return None if several else value


def _checked_heads(heads: Sequence[str]) -> Sequence[str]:
    if isinstance(heads, str) or not all(isinstance(head, str) for head in heads):
        raise TypeError(f"heads must be a list of names, got {heads!r}")
    return heads


def _as_metric(metric: str | Metric | Callable[[Any, Any], Any]) -> Metric:
    if isinstance(metric, str):
        return metrics.get(metric)
    if not isinstance(metric, type | Metric) and callable(metric):
        return FunctionMetric(metric)
    if isinstance(metric, type) or not isinstance(metric, Metric):
        what = f"the class {metric.__name__}" if isinstance(metric, type) else repr(metric)
        raise TypeError(
            f"{what} is not a metric: expected a name, a function of outputs and targets, or an "
            "object with reset/update/compute"
        )
    return metric


def _default_name(metric: str | Metric | Callable[[Any, Any], Any]) -> str:
    if isinstance(metric, str):
        return metric.lower()
    return getattr(metric, "__name__", type(metric).__name__).lower()


def _torchmetrics_in(metric: Metric) -> list[Any]:
    """Return the torchmetrics modules of a metric, which synchronize across ranks themselves."""
    modules = metric.modules() if isinstance(metric, nn.Module) else ()
    return [module for module in modules if hasattr(module, "distributed_available_fn")]


def _not_distributed() -> bool:
    return False


def _outputs_and_targets(output: Output) -> tuple[Any, Any]:
    outputs = output.outputs
    if isinstance(outputs, Mapping):
        return outputs.get("logits", outputs), output.targets
    return getattr(outputs, "logits", outputs), output.targets


def _flatten(name: str, value: Any) -> list[tuple[str, float]]:
    """Return a computed value as named numbers; dicts and tensors give one per entry."""
    if isinstance(value, dict):
        return [pair for key, item in value.items() for pair in _flatten(f"{name}/{key}", item)]
    if isinstance(value, Tensor) and value.numel() != 1:
        return [(f"{name}/{i}", float(item)) for i, item in enumerate(value.flatten())]
    return [(name, float(value))]
