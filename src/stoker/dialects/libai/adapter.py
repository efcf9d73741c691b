"""Run the hooks and steps of LiBai in a Stoker run."""

import logging
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from inspect import Parameter, signature
from typing import Any

import torch
from torch import Tensor, nn

from stoker import Engine, Hook, Output, Run, Step
from stoker.core import dist
from stoker.core.tree import concatenate
from stoker.dialects.adapter import Adapter, Model, Proxy, overridden, with_names
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
        found.append(one := Adapter(None, type(trainer).__name__, same_on_all_ranks=True))
        for point in own:
            one.place(point, point, _calling(weakref.proxy(trainer), point))
    for hook, name in with_names(hooks):
        if isinstance(hook, Hook):
            found.append(hook)
            continue
        found.append(one := Adapter(hook, name, same_on_all_ranks=True))
        for point in overridden(hook, base, POINTS):
            if point not in own:
                one.place(point, point, _calling(hook, point))
    return found


def _calling(owner: Any, point: str) -> Any:
    return lambda run: getattr(owner, point)()


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


class Window:
    """An iterator over the micro-batches of a step, for ``run_step``."""

    def __init__(self, batches: Any) -> None:
        self.left = list(batches)

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        if not self.left:
            raise RuntimeError("run_step used more batches than an iteration has (grad_acc_steps)")
        return self.left.pop(0)


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
        done = 0
        while True:
            left = len(self._window.left)
            self._trainer.run_step_of(inner, run.step * count + done)
            done += 1
            if len(self._window.left) in (0, left):
                return self._updated

    @property
    def data_time(self) -> float:
        """The seconds that the iteration has waited for its data."""
        return float(self._trainer.data_time)

    def take_all(self) -> Any:
        """Return the remaining batches of the iteration as one."""
        batches, self._window.left = self._window.left, []
        return batches[0] if len(batches) == 1 else concatenate(batches)

    def run_window(self, get_batch: Any, device: str, mixup: Any = None) -> None:
        """Perform Stoker's update over all remaining batches."""
        self.get_batch = lambda batch: call(get_batch, batch, device, mixup)
        self._updated = super().train(self._run) is not False
        self._window.left = []
        outputs = self._run.outputs
        if outputs:
            self._inner.write_metrics(_means(outputs), self.data_time)

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


def call(function: Callable[..., Any], *args: Any) -> Any:
    """Call a function or method with as many of the arguments as it takes."""
    bare = getattr(function, "__func__", function)
    return function(*args[: _positions(bare) - (bare is not function)])


@lru_cache(maxsize=256)
def _positions(function: Callable[..., Any]) -> int:
    """Return how many positional arguments a function takes."""
    kinds = [one.kind for one in signature(function).parameters.values()]
    open_ended = Parameter.VAR_POSITIONAL in kinds
    named = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
    return 99 if open_ended else sum(kind in named for kind in kinds)


def _means(outputs: list[Output]) -> dict[str, Any]:
    """Return the model's outputs by name, as means over the samples of the iteration."""
    found = {name: value for name, value in outputs[0].outputs.items() if value.ndim == 0}
    if len(outputs) == 1:
        return found
    total = sum(float(one.weight or 0) for one in outputs) or 1.0
    shares = [(one.outputs, float(one.weight or 0) / total) for one in outputs]
    return {name: sum(one[name].detach() * share for one, share in shares) for name in found}


# The models and optimizers of a trainer, and how a ``run_step`` of its own uses them


def engine_of(inner: Any, options: dict[str, Any]) -> Engine:
    """Return an engine for what a trainer trains: the models and optimizers in its attributes.

    The engine runs one model with one optimizer. If a trainer has several, the engine only saves
    and restores them, and the trainer calls them itself.
    """
    options = {**options, **getattr(inner, "engine_extras", {})}
    if not runs_itself(inner):
        return Engine(inner.model, inner.optimizer, **options)
    models, optimizers = _attributes(inner, nn.Module), _attributes(inner, torch.optim.Optimizer)
    if not models:
        anchor = nn.ParameterList([torch.zeros(1)])  # a trainer without a model
        return Engine(anchor, torch.optim.SGD(anchor.parameters(), lr=0.0), device="cpu")
    several = len(models) > 1 or len(optimizers) > 1
    model = nn.ModuleDict(models) if several else next(iter(models.values()))
    options.setdefault("device", _device_of(model))
    known = set(model.parameters())
    for name in [name for name, one in optimizers.items() if not known.issuperset(_held(one))]:
        _log.warning(f"checkpoints do not store self.{name}: it updates what is in no attribute")
        del optimizers[name]
    if several and dist.world_size() > 1:
        raise ValueError(
            f"{type(inner).__name__} trains {', '.join([*models, *optimizers])} itself, so that "
            "gradients would not be averaged over the processes: use one model and one optimizer"
        )
    if len(optimizers) == 1 and not several:
        return Engine(model, next(iter(optimizers.values())), **options)
    return Engine(model, optimizers or None, **options)


def _attributes(inner: Any, kind: type) -> dict[str, Any]:
    """Return the attributes of a kind, each object once."""
    found = {id(one): (name, one) for name, one in vars(inner).items() if isinstance(one, kind)}
    return dict(found.values())


def _held(optimizer: torch.optim.Optimizer) -> list[Any]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _device_of(model: nn.Module) -> torch.device:
    """Return where a model is; a ``run_step`` of its own places batches itself."""
    return next((one.device for one in model.parameters()), torch.device("cpu"))


def runs_itself(inner: Any) -> bool:
    """Return whether a trainer has a ``run_step`` of its own, or a graph a ``build``."""
    graph = getattr(inner, "graph", None)
    stock = getattr(type(inner), "run_step", None) is getattr(type(inner), "stock_step", None)
    return not stock or (graph is not None and not getattr(graph, "is_stock", False))


@contextmanager
def through_engine(inner: Any, engine: Engine) -> Iterator[None]:
    """Let a trainer and its graph use the model and the optimizer through the engine inside."""
    owners = [inner, getattr(inner, "graph", None)] if runs_itself(inner) else []
    given = [
        (owner, name, value)
        for owner in owners
        for name, value in getattr(owner, "__dict__", {}).items()
        if value is engine.model or value is engine.optimizer
    ]
    try:
        for owner, name, value in given:
            if value is engine.optimizer and value is not None:
                setattr(owner, name, Optimizer(engine))
            elif value is engine.model and _changes_calls(engine):
                setattr(owner, name, Model(engine))
        yield
    finally:
        for owner, name, value in given:
            setattr(owner, name, value)


def _changes_calls(engine: Engine) -> bool:
    """Return whether a call through the engine does more than calling the model."""
    return bool(
        engine.layout.processes > 1
        or engine.compile_mode
        or engine.moves_batches
        or engine.precision.name != "fp32"
    )


class Optimizer(Proxy):
    """The optimizer for a ``run_step`` that updates the weights itself.

    ``step`` clips gradients and performs the update of the engine; ``clip_grad`` does nothing.
    """

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine, engine.optimizer)

    def zero_grad(self, *_: Any, **__: Any) -> None:
        """Clear the gradients."""
        self._engine.zero_grad()

    def clip_grad(self, *_: Any, **__: Any) -> None:
        """Do nothing; `step` clips."""

    def step(self, closure: Any = None) -> Any:
        """Clip gradients and update the parameters."""
        if self._engine.scaler is not None:
            raise RuntimeError(
                "run_step calls backward() itself, and amp.enabled scales losses before that: "
                "leave one of them out"
            )
        loss = None if closure is None else closure()
        self._engine.update()
        return loss
