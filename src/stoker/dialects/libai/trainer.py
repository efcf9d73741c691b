"""The trainers: Stoker's loop in iterations, with hooks at four points."""

import logging
import weakref
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from stoker import Engine, Hook, Run, Trainer
from stoker.dialects.libai.adapter import (
    POINTS,
    Clock,
    RunStep,
    adapted,
    apply,
    by_name,
    engine_of,
    runs_itself,
)
from stoker.dialects.libai.events import EventStorage, get_event_storage
from stoker.dialects.script_step import through_engine
from stoker.hooks import Checkpoint, Write

_log = logging.getLogger("libai.trainer")


class HookBase:
    """Code at four points of training; `trainer` is the trainer it is registered with."""

    trainer: Any = None

    def before_train(self) -> None:
        """Called before the first iteration."""

    def after_train(self) -> None:
        """Called after the last iteration, even after a failure."""

    def before_step(self) -> None:
        """Called before each iteration."""

    def after_step(self) -> None:
        """Called after each iteration; `trainer.iter` is still its number."""


def _calling(point: str) -> Callable[["TrainerBase"], None]:
    """Return the method that calls a point of all hooks; a script may override it."""
    return lambda trainer: trainer._call_hooks(point)


class TrainerBase:
    """Iterations ``start_iter`` to ``max_iter``, each a `run_step` between two hook points.

    Attributes:
        iter: the current iteration, from 0; ``max_iter`` after a successful run.
        start_iter, max_iter: where it begins and ends.
        storage: the numbers of the run.
        data_time: the seconds that this iteration has waited for its data.
    """

    def __init__(self) -> None:
        self.iter = self.start_iter = self.max_iter = 0
        self.storage: EventStorage
        self.run: Run
        self.data_time = 0.0
        self._hooks: list[HookBase | Hook] = []

    def register_hooks(self, hooks: Iterable[HookBase | Hook | None]) -> None:
        """Add hooks, which run in this order; Stoker hooks are allowed."""
        for hook in hooks:
            if hook is None:
                continue
            if not isinstance(hook, HookBase | Hook):
                raise TypeError(f"{hook!r} is a {type(hook).__name__}, expected a HookBase object")
            if isinstance(hook, HookBase):
                hook.trainer = weakref.proxy(self)
            self._hooks.append(hook)

    def train(self, start_iter: int, max_iter: int) -> Any:
        """Train from ``start_iter`` to ``max_iter``, or resume from the last checkpoint."""
        self.iter = self.start_iter = start_iter
        self.max_iter = max_iter
        inner = self.inner()
        engine = engine_of(inner, self.engine_options())
        trainer = self._stoker(inner, engine, start_iter)
        owners = [inner, getattr(inner, "graph", None)] if runs_itself(inner) else []
        with through_engine(owners, engine):
            trainer.fit(self._loader(inner), max_steps=max_iter, resume=self.resume())

    def _call_hooks(self, point: str) -> None:
        for hook in self._hooks:
            if isinstance(hook, HookBase):
                getattr(hook, point)()
            elif not hasattr(self, "run"):
                raise RuntimeError(
                    f"{type(hook).__name__} acts only in TrainerBase.train(): a train() of your "
                    "own cannot call it"
                )

    before_train, after_train, before_step, after_step = map(_calling, POINTS)

    def run_step(self) -> None:
        """Run one iteration; override it."""
        raise NotImplementedError(f"{type(self).__name__} has no run_step(self)")

    @staticmethod
    def write_metrics(loss_dict: Mapping[str, Tensor], data_time: float, prefix: str = "") -> None:
        """Put the losses of an iteration, and their sum as ``total_loss``.

        They are those of this process until a writer looks at them: then means over all.
        """
        found = {
            prefix + name: value.detach().float().mean() if value.ndim else value
            for name, value in loss_dict.items()
        }
        storage = get_event_storage()
        storage.put_scalar("data_time", data_time)
        losses = [value for name, value in found.items() if "loss" in name]
        total = losses[0] if len(losses) == 1 else sum(value.detach() for value in losses)
        storage.put_apart(f"{prefix}total_loss", total)
        if len(found) > 1:
            for name, value in found.items():
                storage.put_apart(name, value)

    def flush(self) -> None:
        """Write all new events now; every process must call it."""
        self.storage.share()
        for hook in self._hooks:
            if isinstance(hook, Write):
                hook.act(self.run)

    # How it stands on Stoker

    def inner(self) -> Any:
        """Return the trainer that holds the model, the data and the step."""
        return self

    def resume(self) -> str:
        """Return the ``resume`` argument of ``Trainer.fit``."""
        return "auto"

    def engine_options(self) -> dict[str, Any]:
        """Return the options of the engine."""
        return {}

    def run_once(self) -> None:
        """Call `run_step` once; an iteration calls it once per micro-batch."""
        self.run_step()

    def _stoker(self, inner: Any, engine: Engine, start_iter: int) -> Trainer:
        me = weakref.proxy(self)
        step = inner.stoker_step = RunStep(me, weakref.proxy(inner))
        trainer = Trainer(
            engine,
            [Clock(me), *adapted(self._hooks, HookBase, self, TrainerBase)],
            step=step,
            accumulate=getattr(inner, "grad_acc_steps", 1),
            last_window="drop",
        )
        windows = {w for hook in self._hooks for w in getattr(hook, "windows", ())}
        if len(windows) > 1:
            raise ValueError(
                f"writers have different smoothing windows {sorted(windows)}, expected one"
            )
        storage = EventStorage(start_iter, window=windows.pop() if windows else 20)
        storage.engine = engine
        trainer.run.events, trainer.run.step = storage, start_iter
        return trainer

    def _loader(self, inner: Any) -> Any:
        """Return the data that ``next(self._data_loader_iter)`` reads in `run_step`."""
        if isinstance(inner, EagerTrainer) or "_data_loader_iter" in vars(inner):
            return inner.data_loader
        if any(isinstance(hook, Checkpoint) for hook in self._hooks):
            _log.warning(
                f"{type(inner).__name__} reads its data itself, so that checkpoints do not store "
                "its position: keep the loader in self.data_loader and read "
                "next(self._data_loader_iter)"
            )
        return [torch.zeros(1)] * max(1, self.max_iter - self.start_iter)


def plain_batch(data: Any, input_placement_device: str = "cuda", mixup_func: Any = None) -> Any:
    """Return a batch as keyword arguments of the model."""
    if type(data) is dict and mixup_func is None:
        return data
    if hasattr(data, "get_fields"):
        data = {name: getattr(one, "tensor", one) for name, one in data.get_fields().items()}
    if not isinstance(data, Mapping):
        raise TypeError(
            f"get_batch got a {type(data).__name__}, expected a dict of the model's arguments: "
            "let the data set return one, or override get_batch"
        )
    if mixup_func is not None:
        images, labels = mixup_func(data["images"], data["labels"])
        return {**data, "images": images, "labels": labels}
    return data


class EagerTrainer(TrainerBase):
    """Train a model whose forward takes a batch as keyword arguments and returns its losses.

    ``grad_acc_steps`` batches make one iteration; ``data_loader.mixup_func``, if there is one,
    mixes them.
    """

    def __init__(
        self, model: nn.Module, data_loader: Any, optimizer: Any, grad_acc_steps: int = 1
    ) -> None:
        super().__init__()
        self.model, self.data_loader, self.optimizer = model, data_loader, optimizer
        self.grad_acc_steps = grad_acc_steps
        self.stoker_step: RunStep
        model.train()

    def run_once(self) -> None:
        """Call `run_step` of a standalone trainer."""
        self.run_step(plain_batch)

    def run_step(  # type: ignore[override]
        self, get_batch: Callable[..., Any], input_placement_device: str = "cuda"
    ) -> None:
        """Run forward, backward and update for the batches of the iteration."""
        self.stoker_step.run_window(get_batch, input_placement_device)

    stock_step = run_step


class GraphTrainer(EagerTrainer):
    """An `EagerTrainer` whose model is compiled with `torch.compile`.

    A graph with a ``build`` of its own is called for each iteration, before the update.
    """

    def __init__(self, graph: Any, data_loader: Any, grad_acc_steps: int = 1) -> None:
        optimizer = getattr(graph, "optimizer", None)
        super().__init__(graph.model, data_loader, optimizer, grad_acc_steps)
        self.graph = graph
        self.engine_extras = {"compile": getattr(graph, "backend", False)}

    def run_step(  # type: ignore[override]
        self, get_batch: Callable[..., Any], input_placement_device: str = "cuda"
    ) -> None:
        """Run an iteration, through the ``build`` of the graph if it has one of its own."""
        if not runs_itself(self):
            super().run_step(get_batch, input_placement_device)
            return
        data = self.stoker_step.take_all(get_batch, input_placement_device)
        losses = by_name(apply(self.graph, data))
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.write_metrics(losses, self.data_time)

    stock_step = run_step
