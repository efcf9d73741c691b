"""The trainers: Stoker's loop in iterations, with hooks at four points."""

import weakref
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from stoker import Engine, Hook, Run, Trainer
from stoker.dialects.libai.adapter import Anchor, Clock, Model, Optimizer, RunStep, adapted
from stoker.dialects.libai.events import EventStorage, get_event_storage
from stoker.hooks import Write


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
        trainer, loader = self._stoker(inner, start_iter)
        given = {name: inner.__dict__.get(name) for name in ("model", "optimizer")}
        if _runs_itself(inner) and given["model"] is not None:
            inner.model, inner.optimizer = Model(trainer.engine), Optimizer(trainer.engine)
        try:
            trainer.fit(loader, max_steps=max_iter, resume=self.resume())
        finally:
            inner.__dict__.update({name: one for name, one in given.items() if one is not None})

    def run_step(self) -> None:
        """Run one iteration; override it."""
        raise NotImplementedError(f"{type(self).__name__} has no run_step(self)")

    @staticmethod
    def write_metrics(loss_dict: Mapping[str, Tensor], data_time: float, prefix: str = "") -> None:
        """Put the losses of an iteration, and their sum as ``total_loss``.

        They are those of this process until a writer looks at them: then means over all.
        """
        found = {prefix + name: _number(value) for name, value in loss_dict.items()}
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

    def run_step_of(self, inner: Any, number: int) -> None:
        """Call `run_step` once; an iteration calls it once per micro-batch."""
        self.run_step()

    def _stoker(self, inner: Any, start_iter: int) -> tuple[Trainer, Any]:
        model, optimizer = getattr(inner, "model", None), getattr(inner, "optimizer", None)
        if model is None or optimizer is None:
            model = Anchor()
            optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        loader = getattr(inner, "data_loader", None)
        if loader is None:
            loader = [torch.zeros(1)] * max(1, self.max_iter - start_iter)
        options = {**self.engine_options(), **getattr(inner, "engine_extras", {})}
        engine = Engine(model, optimizer, **options)
        me = weakref.proxy(self)
        step = inner.stoker_step = RunStep(me, weakref.proxy(inner))
        trainer = Trainer(
            engine,
            [Clock(me), *adapted(self._hooks, HookBase)],
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
        return trainer, loader


def _number(value: Tensor) -> Tensor:
    return value.detach().float().mean() if value.ndim else value


def _runs_itself(inner: Any) -> bool:
    stock = (EagerTrainer.run_step, GraphTrainer.run_step)
    return getattr(type(inner), "run_step", None) not in stock


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

    def run_step_of(self, inner: Any, number: int) -> None:
        """Run one iteration of a standalone trainer."""
        at, self.iter = self.iter, number
        self.run_step(plain_batch)
        self.iter = at

    def run_step(  # type: ignore[override]
        self, get_batch: Callable[..., Any], input_placement_device: str = "cuda"
    ) -> None:
        """Run forward, backward and update for the batches of the iteration."""
        mixup = getattr(self.data_loader, "mixup_func", None)
        if mixup is None:
            self.stoker_step.run_window(get_batch, input_placement_device)
        else:
            self.stoker_step.run_window(
                lambda data, device: get_batch(data, device, mixup), input_placement_device
            )


class Graph:
    """A model to compile, with its optimizer."""

    def __init__(self, model: nn.Module, optimizer: Any = None, backend: str = "inductor") -> None:
        self.model, self.optimizer, self.backend = model, optimizer, backend


class GraphTrainer(EagerTrainer):
    """An `EagerTrainer` whose model is compiled with `torch.compile`."""

    def __init__(self, graph: Graph, data_loader: Any, grad_acc_steps: int = 1) -> None:
        super().__init__(graph.model, data_loader, graph.optimizer, grad_acc_steps)
        self.graph = graph
        self.engine_extras = {"compile": graph.backend}
