"""The models and optimizers of a trainer, and how a ``run_step`` of its own uses them."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from stoker import Engine
from stoker.core import dist
from stoker.dialects.adapter import Model, Proxy

_log = logging.getLogger("libai.trainer")


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
