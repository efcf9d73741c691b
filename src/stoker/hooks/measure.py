"""Hooks that measure what is learned: losses, metrics, learning rates, gradient norms."""

from collections import Counter, deque
from collections.abc import Callable, Mapping
from copy import deepcopy
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn

from stoker import metrics
from stoker.core import dist
from stoker.core.tree import as_floats
from stoker.core.types import Output, Scalar, Stateful
from stoker.hooks.base.hook import Hook, Priority
from stoker.metrics import Accuracy, Mean, Metric
from stoker.metrics.collection import MetricCollection
from stoker.parallel import Stages
from stoker.run import Run


class Loss(Hook):
    """``train/loss`` and ``val/loss``, and the scalars of outputs, as means over samples.

    While training, writers get the mean over the samples of the last ``window`` steps (of
    scalars the median of the last 20 steps); the result of an epoch is the mean over all its
    samples. A criterion that sums is shown as a mean all the same.
    """

    priority = Priority.MEASURE
    same_on_all_ranks = True
    produces = ("train/loss", "val/loss")

    def __init__(self, window: int = 50) -> None:
        self._recent: deque[tuple[Tensor, float]] = deque(maxlen=window)
        self._train = _Means()
        self._val = _Means()

    def attach(self, run: Run) -> None:
        """Offer the recent mean to writers."""
        run.events.gauge("train/loss", self._recent_mean)

    def before_epoch(self, run: Run) -> None:
        """Start the means of the epoch anew."""
        self._train.reset()

    def after_step(self, run: Run) -> None:
        """Take in the step, without reading anything back."""
        outputs = run.outputs
        if not run.updated or not outputs:
            return  # a loss that made no update, such as a NaN that was skipped, spoils no mean
        loss = run.loss
        weight = outputs[0].weight if len(outputs) == 1 else sum(o.weight or 0 for o in outputs)
        if loss is not None and weight:
            loss = loss / weight if run.engine.sums else loss
            self._recent.append((loss, weight))
            self._train.loss.update(loss, weight)
        for output in outputs:
            if output.scalars:
                self._train.add_scalars(output)
                for name, value in output.scalars.items():
                    run.events.put_scalar(f"train/{name}", value)

    def after_train_epoch(self, run: Run) -> None:
        """The means over all samples of the epoch."""
        run.metrics.update({f"train/{name}": mean for name, mean in self._train.compute().items()})

    def before_val(self, run: Run) -> None:
        """Start the means of a validation loader anew."""
        self._val.reset()

    def after_val_step(self, run: Run) -> None:
        """Take in a validation batch."""
        for output in run.outputs:
            loss, weight = output.loss, output.weight
            if loss is not None and weight:
                loss = loss.detach() if loss.requires_grad else loss
                self._val.loss.update(loss / weight if run.engine.sums else loss, weight)
            if output.scalars:
                self._val.add_scalars(output)

    def after_val(self, run: Run) -> None:
        """The means over all samples of the loader."""
        for name, mean in self._val.compute().items():
            run.record(f"{run.val_name}/{name}", mean)

    def state_dict(self) -> dict[str, Any]:
        """The means of the epoch in progress and the recent losses."""
        losses = as_floats([loss for loss, _ in self._recent])
        recent = [[loss, weight] for loss, (_, weight) in zip(losses, self._recent, strict=True)]
        return {"recent": recent, "train": self._train.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take back what `state_dict` gave."""
        self._recent.clear()
        recent = [(torch.tensor(v, dtype=torch.float64), w) for v, w in state["recent"]]
        self._recent.extend(recent)
        self._train.load_state_dict(state["train"])

    def _recent_mean(self) -> float | None:
        losses = as_floats([loss for loss, _ in self._recent])
        weights = [weight for _, weight in self._recent]
        sums = sum(loss * weight for loss, weight in zip(losses, weights, strict=True))
        total, weight = dist.all_reduce_sum(sums, sum(weights))
        return total / weight if weight else None


class _Means:
    """A mean loss and means of further scalars by name."""

    def __init__(self) -> None:
        self.loss = Mean()
        self.scalars: dict[str, Mean] = {}

    def reset(self) -> None:
        self.loss.reset()
        self.scalars.clear()

    def add_scalars(self, output: Output) -> None:
        for name, value in output.scalars.items():
            number = value.detach() if isinstance(value, Tensor) else value
            self.scalars.setdefault(name, Mean()).update(number, output.weight or 0.0)

    def compute(self) -> dict[str, float]:
        means = {"loss": self.loss.compute()}
        if means["loss"] != means["loss"] and self.loss.empty:
            del means["loss"]  # nothing had a loss
        names = sorted(
            {name for names in dist.all_gather_object([*self.scalars]) for name in names}
        )
        scalars = {name: self.scalars.get(name, Mean()).compute() for name in names}
        return means | scalars

    def state_dict(self) -> dict[str, Any]:
        scalars = {name: mean.state_dict() for name, mean in self.scalars.items()}
        return {"loss": self.loss.state_dict(), "scalars": scalars}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.loss.load_state_dict(state["loss"])
        self.scalars = {name: Mean() for name in state["scalars"]}
        for name, mean in self.scalars.items():
            mean.load_state_dict(state["scalars"][name])


class Metrics(Hook):
    """Metrics over validation data, and over training data where asked.

        Metrics("accuracy")                                     val/accuracy
        Metrics(top5=Accuracy(5), on="both")                    train/top5, val/top5
        Metrics(f1=metrics.get("MulticlassF1Score", num_classes=10))

    They read what the one forward pass of a batch gave: ``metric.update(outputs, targets)``.
    Over training data a metric covers the epoch so far.

    Args:
        metrics: names, or metric objects, which are called by their class in lower case.
        on: "val", "train" or "both".
        read: what the metrics get of an `Output`; its ``outputs`` (their "logits" where they have
            some) and ``targets`` unless said otherwise.
        named: metrics under names of your own.
    """

    priority = Priority.MEASURE
    same_on_all_ranks = True

    def __init__(
        self,
        *metrics: str | Metric,
        on: Literal["val", "train", "both"] = "val",
        read: Callable[[Output], tuple[Any, Any]] | None = None,
        **named: str | Metric,
    ) -> None:
        if on not in ("val", "train", "both"):
            raise ValueError(f"Metrics are taken on 'val', 'train' or 'both', got {on!r}")
        pairs = [(_default_name(m), m) for m in metrics] + list(named.items())
        repeated = [name for name, count in Counter(name for name, _ in pairs).items() if count > 1]
        if repeated:
            raise ValueError(
                f"two metrics are named {repeated[0]!r}: give one a name, Metrics(name=…)"
            )
        made = {name: _as_metric(metric) for name, metric in pairs}
        if not made:
            raise ValueError("Metrics was given no metric: Metrics('accuracy') is a start")
        self._read = read or _outputs_and_targets
        self._val = MetricCollection(made if on != "train" else {})
        self._train = MetricCollection(deepcopy(made) if on != "val" else {})
        for metric in self._train.values():
            persistent: Any = getattr(metric, "persistent", None)
            if callable(persistent):
                persistent(True)  # torchmetrics leaves what it counted out of its state
        self._updated = False
        self._stages: Stages | None = None
        self.produces = (*(f"train/{n}" for n in self._train), *(f"val/{n}" for n in self._val))

    def attach(self, run: Run) -> None:
        """Move metrics that hold tensors to the device, and offer those on training data."""
        self._stages, copies = run.engine.stages, run.engine.parallel_model.copies
        for metric in [*self._train.values(), *self._val.values()]:
            if isinstance(metric, nn.Module):
                metric.to(run.engine.device)
            for one in _gathers(metric) if self._stages is not None else ():
                one.process_group = copies
                if copies is None:
                    one.distributed_available_fn = _nobody_else
            probabilities = isinstance(run.engine.given_criterion, nn.BCELoss)
            if probabilities and isinstance(metric, Accuracy) and metric.threshold == 0.0:
                raise ValueError(
                    "the criterion is BCELoss, so outputs are probabilities and not logits: use "
                    "Accuracy(threshold=0.5)"
                )
        for name, metric in self._train.items():
            run.events.gauge(f"train/{name}", partial(self._so_far, metric))

    def before_epoch(self, run: Run) -> None:
        """Start those on training data anew."""
        self._updated = False
        self._train.begin()

    def after_step(self, run: Run) -> None:
        """Take in the step."""
        if self._train and run.updated:
            self._updated = True
            for output in run.outputs:
                self._update(self._train, output)

    def after_train_epoch(self, run: Run) -> None:
        """The values over the epoch."""
        for name, metric in self._train.items() if self._updated else ():
            for key, value in _values(name, self._computed(metric)):
                run.metrics[f"train/{key}"] = value

    def before_val(self, run: Run) -> None:
        """Start those on validation data anew."""
        self._val.begin()

    def after_val_step(self, run: Run) -> None:
        """Take in a validation batch."""
        for output in run.outputs:
            self._update(self._val, output)

    def after_val(self, run: Run) -> None:
        """The values over the loader."""
        self._val.end()
        for name, metric in self._val.items():
            for key, value in _values(name, self._computed(metric)):
                run.record(f"{run.val_name}/{key}", value)

    def _computed(self, metric: Metric) -> Any:
        """The value over all processes. Of a pipeline those that have outputs tell the others."""
        if self._stages is None or not _gathers(metric):
            return metric.compute()
        value = metric.compute() if self._stages.has_last else None
        return next((found for found in dist.all_gather_object(value) if found is not None), None)

    def _update(self, metrics: MetricCollection, output: Output) -> None:
        if output.weight == 0:  # a batch that only keeps other processes company
            return
        outputs, targets = self._read(output)
        if isinstance(outputs, Tensor):
            outputs = outputs.detach()  # a metric that keeps it must not keep the graph
        metrics.take(outputs, targets)

    def _so_far(self, metric: Metric) -> Scalar | None:
        """For writers: the value over the epoch so far, where it is one number."""
        if not self._updated:
            return None
        value = self._computed(metric)
        several = isinstance(value, dict) or (isinstance(value, Tensor) and value.numel() != 1)
        return None if several else value

    def state_dict(self) -> dict[str, Any]:
        """The metrics of the epoch in progress, of those that can be saved."""
        states = {
            name: metric.state_dict()
            for name, metric in self._train.items()
            if isinstance(metric, Stateful)
        }
        counts = {name: getattr(metric, "update_count", 0) for name, metric in self._train.items()}
        return {"updated": self._updated, "train": states, "counts": counts}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take back what `state_dict` gave."""
        self._updated = state["updated"]
        for name, saved in state["train"].items():
            metric: Any = self._train.get(name)
            if isinstance(metric, Stateful):
                metric.load_state_dict(saved)
                if hasattr(metric, "_update_count"):  # torchmetrics warns of none
                    metric._update_count = state["counts"][name]


class LR(Hook):
    """``lr``: the learning rate that the update was made with; ``lr/<name>`` of named optimizers.

    It is that of the parameter group with the most parameters. The engine moves the rate, this
    hook only shows it.
    """

    priority = Priority.REPORT  # after hooks that set a rate of their own before a step
    same_on_all_ranks = True
    produces = ("lr",)

    def __init__(self) -> None:
        self._used: dict[str, float] = {}
        self._group: dict[str, int] = {}

    def before_train(self, run: Run) -> None:
        """Choose the groups to show, and offer their rates to writers."""
        for name, optimizer in run.engine.optimizers.items():
            sizes = [sum(p.numel() for p in g["params"]) for g in optimizer.param_groups]
            self._group[name] = sizes.index(max(sizes))
            if "lr" not in optimizer.param_groups[self._group[name]]:
                raise ValueError(
                    f"{type(optimizer).__name__} has no 'lr' in its parameter groups, so there is "
                    "no learning rate to show: give it one (defaults={'lr': …}), or leave out "
                    "hooks.LR()"
                )
            key = f"lr/{name}" if name else "lr"
            run.events.gauge(key, partial(self._used.get, name))

    def before_step(self, run: Run) -> None:
        """Note the rates in force."""
        for name, optimizer in run.engine.optimizers.items():
            self._used[name] = float(optimizer.param_groups[self._group[name]]["lr"])

    def state_dict(self) -> dict[str, Any]:
        """The rates last used."""
        return {"used": dict(self._used)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take back what `state_dict` gave."""
        self._used.clear()
        self._used.update(state["used"])


class GradNorm(Hook):
    """``grad_norm``: the norm of all gradients before clipping."""

    priority = Priority.MEASURE
    same_on_all_ranks = True
    produces = ("grad_norm",)

    def before_update(self, run: Run) -> None:
        """Measure it."""
        run.events.put_scalar("grad_norm", total_grad_norm(run))


def total_grad_norm(run: Run) -> Tensor:
    """The 2-norm of the gradients that the optimizers will use, on the device."""
    groups = [group for one in run.engine.optimizers.values() for group in one.param_groups]
    return run.engine.parallel_model.total_norm(p for group in groups for p in group["params"])


def _as_metric(metric: str | Metric) -> Metric:
    if isinstance(metric, str):
        return metrics.get(metric)
    if isinstance(metric, type) or not isinstance(metric, Metric):
        what = f"the class {metric.__name__}" if isinstance(metric, type) else repr(metric)
        raise TypeError(
            f"{what} is no metric: expected a name or an object with reset/update/compute"
        )
    return metric


def _gathers(metric: Metric) -> list[Any]:
    """The torchmetrics in a metric, which gather what they counted by themselves."""
    modules = metric.modules() if isinstance(metric, nn.Module) else ()
    return [module for module in modules if hasattr(module, "distributed_available_fn")]


def _nobody_else() -> bool:
    return False


def _default_name(metric: str | Metric) -> str:
    return metric.lower() if isinstance(metric, str) else type(metric).__name__.lower()


def _outputs_and_targets(output: Output) -> tuple[Any, Any]:
    outputs = output.outputs
    if isinstance(outputs, Mapping):
        return outputs.get("logits", outputs), output.targets
    return getattr(outputs, "logits", outputs), output.targets


def _values(name: str, computed: Any) -> list[tuple[str, float]]:
    """What a metric computed as numbers by name; a dict gives one per entry."""
    if isinstance(computed, dict):
        return [pair for key, value in computed.items() for pair in _values(f"{name}/{key}", value)]
    if isinstance(computed, Tensor) and computed.numel() != 1:
        return [(f"{name}/{i}", float(value)) for i, value in enumerate(computed.flatten())]
    return [(name, float(computed))]
