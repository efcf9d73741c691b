"""What dialects share: let a step that a script has written use the engine."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from inspect import Parameter, signature
from typing import Any

import torch
from torch import nn

from stoker import Engine
from stoker.core import dist
from stoker.core.log import get_logger


def call(function: Callable[..., Any], *args: Any) -> Any:
    """Call a function or method with as many of the arguments as it takes."""
    bare = getattr(function, "__func__", function)
    return function(*args[: _positions(bare) - (bare is not function)])


def accepts(function: Callable[..., Any], *args: Any) -> bool:
    """Return whether a function or method can be called with these arguments."""
    try:
        signature(function).bind(*args)
    except TypeError:
        return False
    return True


@lru_cache(maxsize=256)
def _positions(function: Callable[..., Any]) -> int:
    """Return how many positional arguments a function takes."""
    kinds = [one.kind for one in signature(function).parameters.values()]
    open_ended = Parameter.VAR_POSITIONAL in kinds
    named = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
    return 99 if open_ended else sum(kind in named for kind in kinds)


class Proxy:
    """Stands for an object of a script; what it does not define is that of the object."""

    def __init__(self, engine: Engine, thing: Any) -> None:
        self.__dict__.update(_engine=engine, _thing=thing)

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        return type(self._thing)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_thing"], name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._thing, name, value)


class Model(Proxy):
    """The model, for code of a script that calls it: calls go through the engine."""

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine, engine.model)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Return the outputs of the model."""
        return self._engine(*args, **kwargs)


class Optimizer(Proxy):
    """The optimizer for a step that updates the weights itself.

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
                "the script calls backward() itself, and fp16 scales losses before that: use fp32, "
                "or let the trainer call backward()"
            )
        loss = None if closure is None else closure()
        self._engine.update()
        return loss


def model_for(engine: Engine) -> Any:
    """Return the model for code that calls it: the model itself if that is all the engine does."""
    does_more = (
        engine.layout.processes > 1
        or engine.compile_mode
        or engine.moves_batches
        or engine.precision.name != "fp32"
    )
    return Model(engine) if does_more else engine.model


@contextmanager
def through_engine(owners: Iterable[Any], engine: Engine) -> Iterator[None]:
    """Let the attributes of some objects be the model and the optimizer of the engine inside."""
    given = [
        (owner, name, value)
        for owner in owners
        for name, value in getattr(owner, "__dict__", {}).items()
        if value is engine.model or (value is not None and value is engine.optimizer)
    ]
    try:
        for owner, name, value in given:
            is_model = value is engine.model
            setattr(owner, name, model_for(engine) if is_model else Optimizer(engine))
        yield
    finally:
        for owner, name, value in given:
            setattr(owner, name, value)


def engine_for(owner: Any, options: dict[str, Any]) -> Engine:
    """Return an engine for the models and optimizers in the attributes of an object.

    The engine runs one model with one optimizer. If there are several, the engine only saves and
    restores them, and the script calls them itself.
    """
    models, optimizers = _attributes(owner, nn.Module), _attributes(owner, torch.optim.Optimizer)
    if not models:
        anchor = nn.ParameterList([torch.zeros(1)])  # there is nothing to train
        return Engine(anchor, torch.optim.SGD(anchor.parameters(), lr=0.0), device="cpu")
    several = len(models) > 1 or len(optimizers) > 1
    model = nn.ModuleDict(models) if several else next(iter(models.values()))
    placed = next((one.device for one in model.parameters()), torch.device("cpu"))
    known = set(model.parameters())
    for name in [name for name, one in optimizers.items() if not known.issuperset(_held(one))]:
        get_logger().warning(
            f"checkpoints do not store self.{name}: it updates what is in no attribute"
        )
        del optimizers[name]
    if several and dist.world_size() > 1:
        raise ValueError(
            f"{type(owner).__name__} trains {', '.join([*models, *optimizers])} itself, so that "
            "gradients would not be averaged over the processes: use one model and one optimizer"
        )
    single = len(optimizers) == 1 and not several
    updated = next(iter(optimizers.values())) if single else optimizers or None
    return Engine(model, updated, **{"device": placed, **options})


def _attributes(owner: Any, kind: type) -> dict[str, Any]:
    """Return the attributes of a kind, each object once."""
    found = {id(one): (name, one) for name, one in vars(owner).items() if isinstance(one, kind)}
    return dict(found.values())


def _held(optimizer: torch.optim.Optimizer) -> list[Any]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]
