"""`initialize`: build an engine from training components, or all of them from a config."""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from types import ModuleType
from typing import Any

from torch import nn
from torch.optim import Optimizer

from stoker import Engine as Core
from stoker.config import ConfigError
from stoker.data import BatchFeeder
from stoker.dialects.colossalai import registry
from stoker.dialects.colossalai.context import check_section
from stoker.dialects.colossalai.context import global_context as gpc
from stoker.dialects.colossalai.engine import Engine
from stoker.dialects.colossalai.launching import ConfigLike, launch_as_given
from stoker.dialects.colossalai.logging import get_dist_logger
from stoker.dialects.colossalai.schedule import (
    InterleavedPipelineSchedule,
    NonPipelineSchedule,
    PipelineSchedule,
)
from stoker.dialects.colossalai.utils import get_dataloader


def initialize(
    model: nn.Module | Callable[[], nn.Module] | ConfigLike | None = None,
    optimizer: Optimizer | type[Optimizer] | None = None,
    criterion: Any = None,
    train_dataloader: Any = None,
    test_dataloader: Any = None,
    lr_scheduler: Any = None,
    ophooks: Sequence[Any] | None = None,
    verbose: bool = True,
    *,
    config: ConfigLike | None = None,
    **launched: Any,
) -> tuple[Any, ...]:
    """Return ``(engine, train_dataloader, test_dataloader, lr_scheduler)`` as configured.

    The model may be a function that builds it, and the optimizer a class. The returned loaders
    yield the data shard of this process. In your own loop, step the scheduler once per batch.

    In the oldest style all parts are built from a config, which is the first argument, ``config``,
    or ``--config`` on the command line, and the result has no scheduler. Loaders may be given, or
    functions that build them. ``launched`` are arguments of `launch`.
    """
    if isinstance(model, str | Path | Mapping):
        model, config = None, model
    if config is not None or model is None:
        launch_as_given(config, **launched)
    elif launched:
        raise TypeError(f"initialize got {next(iter(launched))}, which is an argument of launch")
    if model is None:
        if any(part is not None for part in (optimizer, criterion, lr_scheduler, ophooks)):
            raise TypeError(
                "initialize got parts but no model: pass it, or a config with all parts"
            )
        return _build(train_dataloader, test_dataloader, verbose)
    if optimizer is None:
        raise TypeError("initialize got a model but no optimizer")
    model = model if isinstance(model, nn.Module) else model()
    optimizer = optimizer(model.parameters()) if isinstance(optimizer, type) else optimizer  # type: ignore[call-arg]
    engine = _engine(model, optimizer, criterion, ophook_list=ophooks, verbose=verbose)
    train, test = _loaders(engine, train_dataloader, test_dataloader)
    every = engine.gradient_accumulation
    rates = lr_scheduler if lr_scheduler is None or every == 1 else _Rates(lr_scheduler, every)
    return engine, train, test, rates


def _build(train: Any, test: Any, verbose: bool) -> tuple[Engine, Any, Any]:
    """Build all parts from the config."""
    config = gpc.config
    for key in ("model", "optimizer", "loss"):
        if key not in config:
            raise ConfigError(f"the config has no {key!r}: expected {key} = dict(type='…')")
    get_dist_logger(**config.get("logging", {}))
    gpc.set_seed(config.get("seed", 1024))
    model = registry.build_model(config.model)
    if hasattr(model, "build_from_cfg"):
        model.build_from_cfg()
    optimizer, criterion = (
        registry.build_optimizer(config.optimizer, model),
        registry.build_loss(config.loss),
    )
    train, test = _loader(train, "train_data"), _loader(test, "test_data")
    rates = None
    if "lr_scheduler" in config:
        rates = registry.build_lr_scheduler(config.lr_scheduler, optimizer, _total_steps(train))
    engine = _engine(model, optimizer, criterion, lr_scheduler=rates, verbose=verbose)
    return engine, *_loaders(engine, train, test)


def _engine(model: nn.Module, optimizer: Any, criterion: Any, **options: Any) -> Engine:
    """Return an engine with the schedule, handlers, accumulation and clipping of the config."""
    config, section = gpc.config, gpc.config.get("engine", {})
    known = ("schedule", "gradient_accumulation", "gradient_clipping", "gradient_handlers")
    check_section("engine", section, known)
    described = section.get("gradient_handlers") or config.get("gradient_handler") or ()
    handlers = [
        registry.build_from_registry(
            one, registry.GRADIENT_HANDLER, model=model, optimizer=optimizer
        )
        for one in described
    ]
    return Engine(
        model,
        optimizer,
        criterion,
        handlers,
        section.get("gradient_clipping") or gpc.clip_norm(),
        schedule=_schedule(section.get("schedule", config.get("schedule"))),
        gradient_accumulation=_accumulation(),
        **options,
    )


def _accumulation() -> Any:
    section = gpc.config.get("engine", {})
    return section.get("gradient_accumulation") or gpc.config.get("gradient_accumulation", 1)


def _total_steps(train: Any) -> int | None:
    """Return the number of updates that the config asks for."""
    config = gpc.config
    if "num_steps" in config or "num_epochs" not in config or train is None:
        return config.get("num_steps")
    return int(config.num_epochs * (len(train) // _accumulation()))


def _loader(given: Any, key: str) -> Any:
    """Return a loader that was given, or its function, or that of the config; None for none."""
    if given is not None or key not in gpc.config:
        return given() if callable(given) else given
    section = gpc.config[key]
    check_section(key, section, ("dataset", "dataloader"))
    options = {"seed": gpc.config.get("seed", 1024), **section.get("dataloader", {})}
    return get_dataloader(registry.build_dataset(section["dataset"]), **options)


def _loaders(engine: Engine, train: Any, test: Any) -> tuple[Any, ...]:
    """Return the loaders of this process, in complete windows."""
    every = engine.gradient_accumulation
    if every == 1 and engine.core.data_shard.world_size == 1:
        return train, test
    counts = ((train, every), (test, 1))
    return tuple(None if one is None else _Windows(one, engine.core, n) for one, n in counts)


class _Windows:
    """The batches of this process, in complete accumulation windows."""

    def __init__(self, loader: Any, core: Core, every: int) -> None:
        self.of_windows, self._every = loader, every
        self._feed = partial(BatchFeeder, loader, every, last_window="drop", shard=core.data_shard)

    def __len__(self) -> int:
        windows = self._feed().steps
        if windows is None:
            raise TypeError(f"a {type(self.of_windows).__name__} has no length")
        return windows * self._every

    def __iter__(self) -> Iterator[Any]:
        return chain.from_iterable(self._feed())


class _Rates:
    """A scheduler that is stepped once per batch, but changes the rate once per update."""

    def __init__(self, scheduler: Any, every: int) -> None:
        self.of_windows, self._every, self._calls = scheduler, every, 0

    def step(self) -> None:
        self._calls += 1
        if self._calls % self._every == 0:
            self.of_windows.step()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.of_windows, name)


def _schedule(described: Any) -> Any:
    """Return the schedule of the config; ``described`` is its key ``schedule``, if there is one."""
    config, options = gpc.config, described if isinstance(described, Mapping) else {}
    if "type" in options:
        return registry.build_schedule(options)
    if gpc.layout(None, {}).pipeline == 1:
        return NonPipelineSchedule()
    count = options.get("num_microbatches", config.get("NUM_MICRO_BATCHES"))
    if count is None:
        raise ValueError(
            "the config has a pipeline but no NUM_MICRO_BATCHES: set the number of micro-batches"
        )
    chunks = config.get("model", {}).get("num_chunks", 1)
    if chunks == 1:
        return PipelineSchedule(count, tensor_shape=config.get("TENSOR_SHAPE"))
    return InterleavedPipelineSchedule(count, chunks, tensor_shape=config.get("TENSOR_SHAPE"))


class _Callable(ModuleType):
    """This module, callable because importing it can shadow the function of its name."""

    def __call__(self, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        return initialize(*args, **kwargs)


sys.modules[__name__].__class__ = _Callable
