"""`launch` and `initialize`: build an engine from a config and training components."""

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
from stoker import seed_all
from stoker.core import dist
from stoker.data import BatchFeeder
from stoker.dialects.colossalai.context import global_context as gpc
from stoker.dialects.colossalai.engine import Engine
from stoker.dialects.colossalai.logging import get_dist_logger
from stoker.dialects.colossalai.registry import GRADIENT_HANDLER, build_from_registry
from stoker.dialects.colossalai.schedule import (
    InterleavedPipelineSchedule,
    NonPipelineSchedule,
    PipelineSchedule,
)

ConfigLike = str | Path | Mapping[str, Any]


def get_default_parser() -> argparse.ArgumentParser:
    """Return a parser with the options of a multi-process script."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--config", help="path of the config file")
    parser.add_argument("--host", help="address of the first process")
    for name in ("port", "world_size", "rank", "local_rank"):
        parser.add_argument(f"--{name}", type=int)
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
    """Load the config, connect the processes and seed; nccl falls back to gloo without CUDA."""
    if backend not in ("nccl", "gloo"):
        raise ValueError(f"backend must be 'nccl' or 'gloo', got {backend!r}")
    gpc.load_config(config)
    if world_size > 1:
        variables = {
            "RANK": rank,
            "WORLD_SIZE": world_size,
            "MASTER_ADDR": host,
            "MASTER_PORT": port,
        }
        if local_rank is not None:
            variables["LOCAL_RANK"] = local_rank
        os.environ.update({name: str(value) for name, value in variables.items()})
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
    """Call `launch` in a process started by torchrun."""
    rank, size, local, port = _numbers("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_PORT")
    host = os.environ.get("MASTER_ADDR", "localhost")
    launch(config, rank, size, host, port, backend, local, seed, verbose)


def _launcher(doc: str, *names: str) -> Callable[..., None]:
    """Return a launch function that reads the ranks from these environment variables."""

    def launch_from(
        config: ConfigLike,
        host: str,
        port: int,
        backend: str = "nccl",
        seed: int = 1024,
        verbose: bool = True,
    ) -> None:
        rank, size, *rest = _numbers(*names)
        local = rest[0] if rest else None
        launch(config, rank, size, host, port, backend, local, seed, verbose)

    launch_from.__doc__ = doc
    return launch_from


_MPI = [f"OMPI_COMM_WORLD_{name}" for name in ("RANK", "SIZE", "LOCAL_RANK")]
launch_from_slurm = _launcher(
    "Call `launch` in a process started by Slurm.", "SLURM_PROCID", "SLURM_NPROCS"
)
launch_from_openmpi = _launcher("Call `launch` in a process started by OpenMPI.", *_MPI)


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
    """Return ``(engine, train_dataloader, test_dataloader, lr_scheduler)`` as configured.

    The model may be a function that builds it, and the optimizer a class. The returned loaders
    yield the data shard of this process. In your own loop, step the scheduler once per batch.
    """
    config = gpc.config
    model = model if isinstance(model, nn.Module) else model()
    optimizer = optimizer(model.parameters()) if isinstance(optimizer, type) else optimizer  # type: ignore[call-arg]
    handlers = [
        build_from_registry(one, GRADIENT_HANDLER, model=model, optimizer=optimizer)
        for one in config.get("gradient_handler") or ()
    ]
    every, clip = config.get("gradient_accumulation", 1), config.get("clip_grad_norm", 0.0)
    common = (model, optimizer, criterion, handlers, clip, ophooks, verbose, _schedule())
    engine = Engine(*common, gradient_accumulation=every)
    if every == 1 and engine.core.data_shard.world_size == 1:
        return engine, train_dataloader, test_dataloader, lr_scheduler
    train = None if train_dataloader is None else _Windows(train_dataloader, engine.core, every)
    test = None if test_dataloader is None else _Windows(test_dataloader, engine.core, 1)
    rates = None if lr_scheduler is None else _Rates(lr_scheduler, every)
    return engine, train, test, rates


class _Windows:
    """The batches of this process, in complete accumulation windows."""

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

    def _feed(self, every: int = 1) -> BatchFeeder:
        return BatchFeeder(self.of_windows, every, last_window="drop", shard=self._core.data_shard)


class _Rates:
    """A scheduler that is stepped once per batch, but changes the rate once per update."""

    def __init__(self, scheduler: Any, every: int) -> None:
        self.of_windows, self._every, self._calls = scheduler, every, 0

    def step(self) -> None:
        """Count a batch."""
        self._calls += 1
        if self._calls % self._every == 0:
            self.of_windows.step()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.of_windows, name)


def _schedule() -> Any:
    """Return the schedule of the config."""
    config = gpc.config
    if gpc.layout(None, {}).pipeline == 1:
        return NonPipelineSchedule()
    count, shape = config.get("NUM_MICRO_BATCHES"), config.get("TENSOR_SHAPE")
    if count is None:
        raise ValueError(
            "the config has a pipeline but no NUM_MICRO_BATCHES: set the number of micro-batches"
        )
    chunks = config.get("model", {}).get("num_chunks", 1)
    if chunks == 1:
        return PipelineSchedule(count, tensor_shape=shape)
    return InterleavedPipelineSchedule(count, chunks, tensor_shape=shape)


def _numbers(*names: str) -> list[int]:
    missing = [name for name in names if name not in os.environ]
    if missing:
        raise RuntimeError(
            f"the environment has no {missing[0]}, which a launcher of this kind sets: start the "
            "script with it, or call launch()"
        )
    return [int(os.environ[name]) for name in names]


class _Callable(ModuleType):
    """This module, callable because importing it can shadow the function of its name."""

    def __call__(self, *args: Any, **kwargs: Any) -> tuple[Engine, Any, Any, Any]:
        return initialize(*args, **kwargs)


sys.modules[__name__].__class__ = _Callable
