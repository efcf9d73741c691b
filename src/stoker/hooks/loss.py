"""`Loss`: mean losses of training and validation."""

from collections import deque
from typing import Any

from torch import Tensor

from stoker.core import dist
from stoker.core.tree import as_floats
from stoker.core.types import Output, Scalar
from stoker.hooks.base.hook import Hook, Priority
from stoker.metrics import Mean
from stoker.run import Run


class Loss(Hook):
    """Report ``train/loss``, ``val/loss`` and the scalars of outputs, as means over samples.

    The result of an epoch is the mean over all its samples. During the epoch, writers get the mean
    over the samples of the last ``window`` steps (for scalars: the median of the last 20 steps).
    Losses are reported as means even if the criterion sums.

    Args:
        window: How many steps the running mean covers.
    """

    observes = True
    priority = Priority.MEASURE
    same_on_all_ranks = True
    produces = ("train/loss", "val/loss")

    def __init__(self, window: int = 50) -> None:
        self._recent: deque[tuple[float, float]] = deque(maxlen=window)
        self._unread: deque[tuple[Scalar, float]] = deque(maxlen=window)
        self._train = _Means()
        self._val = _Means()

    def attach(self, run: Run) -> None:
        """Register the running mean as a gauge."""
        run.events.gauge("train/loss", self._recent_mean)

    def before_epoch(self, run: Run) -> None:
        """Reset the means of the epoch."""
        self._train.reset()

    def after_step(self, run: Run) -> None:
        """Add the step without synchronizing with the device."""
        outputs = run.outputs
        if not run.updated or not outputs:
            return  # a skipped update, for example after a NaN, must not affect the mean
        loss = run.loss
        weight = outputs[0].weight if len(outputs) == 1 else sum(o.weight or 0 for o in outputs)
        if loss is not None and weight:
            loss = loss / weight if run.engine.loss_is_sum else loss
            self._unread.append((loss, weight))
            self._train.loss.update(loss, weight)
        for output in outputs:
            if output.scalars:
                self._train.add_scalars(output)
                for name, value in output.scalars.items():
                    run.events.put_scalar(f"train/{name}", value)

    def after_train_epoch(self, run: Run) -> None:
        """Record the means of the epoch."""
        run.metrics.update({f"train/{name}": mean for name, mean in self._train.compute().items()})

    def before_val(self, run: Run) -> None:
        """Reset the means of the validation loader."""
        self._val.reset()

    def after_val_step(self, run: Run) -> None:
        """Add a validation batch."""
        for output in run.outputs:
            loss, weight = output.loss, output.weight
            if loss is not None and weight:
                loss = loss.detach() if loss.requires_grad else loss
                self._val.loss.update(loss / weight if run.engine.loss_is_sum else loss, weight)
            if output.scalars:
                self._val.add_scalars(output)

    def after_val(self, run: Run) -> None:
        """Record the means of the validation loader."""
        for name, mean in self._val.compute().items():
            run.record(f"{run.val_name}/{name}", mean)

    def state_dict(self) -> dict[str, Any]:
        """Return the means of the current epoch and the recent losses."""
        recent = [[loss, weight] for loss, weight in self._read_recent()]
        return {"recent": recent, "train": self._train.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the means of the current epoch and the recent losses."""
        self._recent.clear()
        self._unread.clear()
        self._recent.extend((loss, weight) for loss, weight in state["recent"])
        self._train.load_state_dict(state["train"])

    def _recent_mean(self) -> float | None:
        sums = weights = 0.0
        for loss, weight in self._read_recent():
            sums += loss * weight
            weights += weight
        total, weight = dist.sum_observed(sums, weights)
        return total / weight if weight else None

    def _read_recent(self) -> deque[tuple[float, float]]:
        """Return the recent losses; each is read back from its device once."""
        unread = self._unread
        if len(unread) > 1:
            losses = as_floats([loss for loss, _ in unread])
            self._recent.extend(zip(losses, [weight for _, weight in unread], strict=True))
            unread.clear()
        elif unread:
            loss, weight = unread.pop()
            self._recent.append((float(loss), weight))
        return self._recent


class _Means:
    """The mean loss and the means of additional scalars by name."""

    def __init__(self) -> None:
        self.loss = Mean()
        self.scalars: dict[str, Mean] = {}

    def reset(self) -> None:
        self.loss.reset()
        self.scalars.clear()

    def add_scalars(self, output: Output) -> None:
        for name, value in output.scalars.items():
            scalar = value.detach() if isinstance(value, Tensor) else value
            self.scalars.setdefault(name, Mean()).update(scalar, output.weight or 0.0)

    def compute(self) -> dict[str, float]:
        means = {"loss": self.loss.compute()}
        if means["loss"] != means["loss"] and self.loss.empty:
            del means["loss"]  # no batch had a loss
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
