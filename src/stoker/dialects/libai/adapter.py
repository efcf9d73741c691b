"""Run the hooks and steps of LiBai in a Stoker run."""

import logging
import weakref
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any

from torch import Tensor

from stoker import Engine, Hook, Output, Run, Step
from stoker.core import dist
from stoker.core.tree import concatenate
from stoker.dialects.adapter import Adapter, overridden, with_names
from stoker.dialects.script_step import call, engine_for
from stoker.hooks import Write

_log = logging.getLogger("libai.trainer")
POINTS = ("before_train", "after_train", "before_step", "after_step")


def adapted(hooks: Iterable[Any], base: type, trainer: Any, trainer_base: type) -> list[Hook]:
    """Return LiBai and Stoker hooks as Stoker hooks.

    At a point that the trainer overrides, its method is called, and calls the hooks.
    """
    own = overridden(trainer, trainer_base, POINTS)
    found: list[Hook] = []
    if own:
        found.append(_adapter(None, type(trainer).__name__, weakref.proxy(trainer), own))
    for hook, name in with_names(hooks):
        if isinstance(hook, Hook):
            found.append(hook)
        else:
            points = [point for point in overridden(hook, base, POINTS) if point not in own]
            found.append(_adapter(hook, name, hook, points))
    return found


def _adapter(hook: Any, name: str, owner: Any, points: list[str]) -> Adapter:
    made = Adapter(hook, name, same_on_all_ranks=True)
    for point in points:
        made.place(point, point, partial(lambda point, run: getattr(owner, point)(), point))
    return made


class Clock(Hook):
    """Update the trainer's counters; the current iteration counts from 0."""

    same_on_all_ranks = True
    priority = 0

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer
        self._waited = 0.0
        self._periods: list[int] = []

    def before_train(self, run: Run) -> None:
        """Start at the step of the run, which may be that of a checkpoint."""
        trainer = self._trainer
        trainer.run, trainer.storage = run, run.events
        trainer.iter = trainer.start_iter = run.step
        periods = [hook.every for hook in trainer._hooks if isinstance(hook, Write)]
        steps = {int(every.count) if every.unit == "st" else 1 for every in periods if every}
        self._periods = dist.broadcast_object(sorted(steps), 0)  # rank 0 alone may have writers
        _log.info(f"Starting training from iteration {run.step}")

    def before_epoch(self, run: Run) -> None:
        """Measure the time spent waiting for batches."""
        assert run.feeder is not None
        run.feeder.timed, self._waited = True, run.feeder.waited

    def before_step(self, run: Run) -> None:
        """Start an iteration."""
        assert run.feeder is not None
        waited, self._waited = run.feeder.waited - self._waited, run.feeder.waited
        self._trainer.iter, self._trainer.data_time = run.step, waited

    def after_step(self, run: Run) -> None:
        """Count samples, and average losses over all processes if a writer is due."""
        storage = self._trainer.storage
        storage.samples = run.samples
        due = run.done or run.requests.active or any(run.step % one == 0 for one in self._periods)
        if storage.apart and due:
            storage.share()

    def on_exception(self, run: Run) -> None:
        """Log the error."""
        _log.error("Exception during training:", exc_info=run.error)

    def after_train(self, run: Run) -> None:
        """Set the final iteration if training succeeded."""
        if run.error is None:
            self._trainer.iter = run.step


class Window(list[Any]):
    """The micro-batches of a step, which ``next`` takes one by one, for ``run_step``."""

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        if not self:
            raise RuntimeError("run_step used more batches than an iteration has (grad_acc_steps)")
        return self.pop(0)


class RunStep(Step):
    """One iteration: call the trainer's ``run_step`` until the accumulation window is used."""

    def __init__(self, trainer: Any, inner: Any) -> None:
        self._trainer, self._inner = trainer, inner
        self.stands_for = inner.__class__.__name__
        self._run: Run
        self._window = Window([])
        self._updated = True
        self.get_batch: Any = None

    def train(self, run: Run) -> bool | None:
        """Call ``run_step``."""
        inner, count = self._inner, len(run.batches)
        self._run, self._updated = run, True
        self._window = inner._data_loader_iter = Window(run.batches)
        inner.iter, inner.data_time = run.step * count, self._trainer.data_time
        while True:
            left = len(self._window)
            self._trainer.run_once()
            inner.iter += 1
            if len(self._window) in (0, left):
                self._trainer.iter = run.step
                return self._updated

    def take_all(self, get_batch: Any, device: str) -> Any:
        """Return the remaining batches of the iteration as one, prepared by ``get_batch``."""
        batches = self._window.copy()
        self._window.clear()
        batch = batches[0] if len(batches) == 1 else concatenate(batches)
        return self._prepared(batch, get_batch, device)

    def _prepared(self, batch: Any, get_batch: Any, device: str) -> Any:
        return call(get_batch, batch, device, getattr(self._inner.data_loader, "mixup_func", None))

    def run_window(self, get_batch: Any, device: str) -> None:
        """Perform Stoker's update over all remaining batches."""
        self.get_batch = lambda batch: self._prepared(batch, get_batch, device)
        self._updated = super().train(self._run) is not False
        self._window.clear()
        outputs = self._run.outputs
        if outputs:
            self._inner.write_metrics(_means(outputs), self._inner.data_time)

    def forward(self, engine: Engine, batch: Any) -> Output:
        """Return the outputs by name; those whose name has "loss" are summed."""
        found = by_name(apply(engine, self.get_batch(batch)))
        losses = [value for name, value in found.items() if "loss" in name]
        if not losses:
            raise ValueError(
                f"{type(engine.model).__name__} returned {sorted(found)}, expected a dict with a "
                "loss in it, whose name has 'loss' in it"
            )
        return Output(sum(losses[1:], losses[0]), outputs=found)


def apply(model: Any, data: Any) -> Any:
    """Call a model with a batch: a dict of its arguments, or a sequence of them."""
    return model(*data) if isinstance(data, list | tuple) else model(**data)


def by_name(outputs: Any) -> Any:
    """Return the outputs of a model by name; a tensor is its loss."""
    return {"loss": outputs} if isinstance(outputs, Tensor) else outputs


def _means(outputs: list[Output]) -> dict[str, Any]:
    """Return the model's outputs by name, as means over the samples of the iteration."""
    found = {name: value for name, value in outputs[0].outputs.items() if value.ndim == 0}
    if len(outputs) == 1:
        return found
    total = sum(float(one.weight or 0) for one in outputs) or 1.0
    shares = [(one.outputs, float(one.weight or 0) / total) for one in outputs]
    return {name: sum(one[name].detach() * share for one, share in shares) for name in found}


def engine_of(inner: Any, options: dict[str, Any]) -> Engine:
    """Return an engine for what a trainer trains."""
    options = {**options, **getattr(inner, "engine_extras", {})}
    if runs_itself(inner):
        return engine_for(inner, options)
    return Engine(inner.model, inner.optimizer, **options)


def runs_itself(inner: Any) -> bool:
    """Return whether a trainer has a ``run_step`` of its own, or a graph a ``build``."""
    graph = getattr(inner, "graph", None)
    stock = getattr(type(inner), "run_step", None) is getattr(type(inner), "stock_step", None)
    return not stock or (graph is not None and not getattr(graph, "is_stock", False))
