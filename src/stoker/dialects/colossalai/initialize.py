"""`launch` and `initialize`: from a config and the parts of a training to an engine."""

import argparse
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from stoker import Engine as Core
from stoker import dist, seed_all
from stoker.data import Feed
from stoker.dialects.colossalai.builder import build_from_registry
from stoker.dialects.colossalai.context import global_context as gpc
from stoker.dialects.colossalai.engine import (
    Engine,
    InterleavedPipelineSchedule,
    NonPipelineSchedule,
    PipelineSchedule,
)
from stoker.dialects.colossalai.logging import get_dist_logger
from stoker.dialects.colossalai.registry import GRADIENT_HANDLER

ConfigLike = str | Path | Mapping[str, Any]


def get_default_parser() -> argparse.ArgumentParser:
    """The options that a script of several processes is started with."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--config", help="path of the config file")
    parser.add_argument("--host", help="address of the first process")
    parser.add_argument("--port", type=int, help="port of the first process")
    parser.add_argument("--world_size", type=int, help="how many processes there are")
    parser.add_argument("--rank", type=int, help="the number of this one")
    parser.add_argument("--local_rank", type=int, help="its number on this machine")
    parser.add_argument("--backend", default="nccl", help="nccl or gloo")
    return parser


def launch(
    config: ConfigLike,
    rank: int,
    world_size: int,
    host: str,
    port: int,
    backend: str = "nccl",
    local_rank: int | None = None,
    seed: int = 1024,
    verbose: bool = True,
) -> None:
    """Load the config, join the other processes, and seed.

    Args:
        config: a Python file, or a dict.
        rank: the number of this process.
        world_size: how many there are.
        host: the address of the first.
        port: its port.
        backend: "nccl", which is gloo where there is no CUDA, or "gloo".
        local_rank: the number of this process on its machine.
        seed: of all random numbers.
        verbose: say so.
    """
    if backend not in ("nccl", "gloo"):
        raise ValueError(f"backend is 'nccl' or 'gloo', got {backend!r}")
    gpc.load_config(config)
    if world_size > 1:
        place = {"RANK": rank, "WORLD_SIZE": world_size, "MASTER_ADDR": host, "MASTER_PORT": port}
        if local_rank is not None:
            place["LOCAL_RANK"] = local_rank
        os.environ.update({name: str(value) for name, value in place.items()})
        cuda = backend == "nccl" and torch.cuda.is_available()
        dist.connect("cuda" if cuda else "cpu")
    seed_all(seed)
    if verbose:
        get_dist_logger().info(
            f"{world_size} processes, seed {seed}, config {dict(gpc.config)}", [0]
        )


def launch_from_torch(
    config: ConfigLike, backend: str = "nccl", seed: int = 1024, verbose: bool = True
) -> None:
    """The same for a process that torchrun has started."""
    rank, local, size, port = map(int, _from_env("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_PORT"))
    (host,) = _from_env("MASTER_ADDR")
    launch(config, rank, size, host, port, backend, local, seed, verbose)


def launch_from_slurm(
    config: ConfigLike,
    host: str,
    port: int,
    backend: str = "nccl",
    seed: int = 1024,
    verbose: bool = True,
) -> None:
    """The same for a process that Slurm has started."""
    rank, size = map(int, _from_env("SLURM_PROCID", "SLURM_NPROCS"))
    launch(config, rank, size, host, port, backend, None, seed, verbose)


def launch_from_openmpi(
    config: ConfigLike,
    host: str,
    port: int,
    backend: str = "nccl",
    seed: int = 1024,
    verbose: bool = True,
) -> None:
    """The same for a process that OpenMPI has started."""
    names = (f"OMPI_COMM_WORLD_{name}" for name in ("RANK", "LOCAL_RANK", "SIZE"))
    rank, local, size = map(int, _from_env(*names))
    launch(config, rank, size, host, port, backend, local, seed, verbose)


def initialize(
    model: nn.Module | Callable[[], nn.Module],
    optimizer: Optimizer | type[Optimizer],
    criterion: Any = None,
    train_dataloader: Iterable[Any] | None = None,
    test_dataloader: Iterable[Any] | None = None,
    lr_scheduler: Any = None,
    ophooks: Sequence[Any] | None = None,
    verbose: bool = True,
) -> tuple[Engine, Any, Any, Any]:
    """An engine as the config says; ``(engine, train_dataloader, test_dataloader, lr_scheduler)``.

    Args:
        model: a module, or a function that makes it.
        optimizer: of the model's parameters, or its class.
        criterion: the loss function; None where the model returns its own loss.
        train_dataloader: comes back as the part of the data that this process trains on.
        test_dataloader: the same for tests.
        lr_scheduler: comes back to be moved once per batch, in a loop of your own.
        ophooks: see `Engine`.
        verbose: see `Engine`.
    """
    config = gpc.config
    model = model if isinstance(model, nn.Module) else model()
    optimizer = optimizer(model.parameters()) if isinstance(optimizer, type) else optimizer  # type: ignore[call-arg]
    handlers = config.get("gradient_handler") or ()
    every = config.get("gradient_accumulation", 1)
    engine = Engine(
        model,
        optimizer,
        criterion,
        [
            build_from_registry(one, GRADIENT_HANDLER, model=model, optimizer=optimizer)
            for one in handlers
        ],
        config.get("clip_grad_norm", 0.0),
        ophooks,
        verbose,
        _schedule(),
        gradient_accumulation=every,
    )
    if every == 1 and engine.core.part.count == 1:
        return engine, train_dataloader, test_dataloader, lr_scheduler
    train = None if train_dataloader is None else _Windows(train_dataloader, engine.core, every)
    test = None if test_dataloader is None else _Windows(test_dataloader, engine.core, 1)
    rates = None if lr_scheduler is None else _Rates(lr_scheduler, every)
    return engine, train, test, rates


class _Windows:
    """The batches of a loader that this process reads, as many as make whole updates."""

    def __init__(self, loader: Any, core: Core, every: int) -> None:
        self.of_windows, self._core, self._every = loader, core, every

    def __len__(self) -> int:
        batches = self._feed().batches
        if batches is None:
            raise TypeError(f"a {type(self.of_windows).__name__} has no length")
        return batches - batches % self._every

    def __iter__(self) -> Iterator[Any]:
        for window in self._feed(self._every):
            yield from window

    def _feed(self, every: int = 1) -> Feed:
        return Feed(self.of_windows, every, last_window="drop", part=self._core.part)


class _Rates:
    """A scheduler that is stepped once per batch, and moves once per update."""

    def __init__(self, scheduler: Any, every: int) -> None:
        self.of_windows, self._every, self._calls = scheduler, every, 0

    def step(self) -> None:
        """A batch is done."""
        self._calls += 1
        if self._calls % self._every == 0:
            self.of_windows.step()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.of_windows, name)


def _schedule() -> Any:
    """The schedule that the config asks for."""
    config = gpc.config
    if gpc.layout(None, {}).pipeline == 1:
        return NonPipelineSchedule()
    count = config.get("NUM_MICRO_BATCHES")
    if count is None:
        raise ValueError("the config has a pipeline, but no NUM_MICRO_BATCHES to cut batches into")
    chunks = config.get("model", {}).get("num_chunks", 1)
    shape = config.get("TENSOR_SHAPE")
    if chunks == 1:
        return PipelineSchedule(count, tensor_shape=shape)
    return InterleavedPipelineSchedule(count, chunks, tensor_shape=shape)


def _from_env(*names: str) -> list[str]:
    missing = [name for name in names if name not in os.environ]
    if missing:
        raise RuntimeError(
            f"the environment has no {missing[0]}, which a launcher of this kind sets: start the "
            "script with it, or call launch()"
        )
    return [os.environ[name] for name in names]


class _Callable(ModuleType):
    """This module, which may take the place of its function in the package when imported."""

    def __call__(self, *args: Any, **kwargs: Any) -> tuple[Engine, Any, Any, Any]:
        return initialize(*args, **kwargs)


sys.modules[__name__].__class__ = _Callable
