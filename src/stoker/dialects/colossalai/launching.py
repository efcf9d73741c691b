"""`launch`: load the config of a job and connect its processes."""

import argparse
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from stoker.config import ConfigError
from stoker.core import dist
from stoker.dialects.colossalai.context import global_context as gpc
from stoker.dialects.colossalai.logging import get_dist_logger

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
    config: ConfigLike | None = None,
    rank: int = 0,
    world_size: int = 1,
    host: str = "localhost",
    port: int = 29500,
    backend: str = "nccl",
    local_rank: int | None = None,
    seed: int = 1024,
    verbose: bool = True,
) -> None:
    """Load the config, connect the processes and seed; nccl falls back to gloo without CUDA."""
    if backend not in ("nccl", "gloo"):
        raise ValueError(f"backend must be 'nccl' or 'gloo', got {backend!r}")
    gpc.load_config({} if config is None else config)
    if world_size > 1:
        names = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "LOCAL_RANK")
        given = zip(names, (rank, world_size, host, port, local_rank), strict=True)
        os.environ.update({name: str(value) for name, value in given if value is not None})
        cuda = backend == "nccl" and torch.cuda.is_available()
        dist.connect("cuda" if cuda else "cpu")
    gpc.connect()
    gpc.set_seed(seed)
    if verbose:
        get_dist_logger().info(
            f"{world_size} processes, seed {seed}, config {dict(gpc.config)}", [0]
        )


def launch_from_torch(
    config: ConfigLike | None = None, backend: str = "nccl", seed: int = 1024, verbose: bool = True
) -> None:
    """Call `launch` in a process started by torchrun, or in a single one without a launcher."""
    if not any(name in os.environ for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK")):
        launch(config, backend=backend, seed=seed, verbose=verbose)
        return
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


def launch_as_given(config: ConfigLike | None, **given: Any) -> None:
    """Call `launch` with arguments that are given, on the command line, or in the environment."""
    parsed, _ = get_default_parser().parse_known_args()
    options = {name: value for name, value in given.items() if value is not None}
    options = {**{n: v for n, v in vars(parsed).items() if v is not None}, **options}
    config = options.pop("config", None) if config is None else config
    if config is None:
        raise ConfigError("initialize got neither a model nor a config: pass one of them")
    if options.get("world_size", 1) > 1:
        options["port"] = int(options.get("port", 29500))
        launch(config, **{"rank": options.get("local_rank", 0), **options})
    else:
        launch_from_torch(config, options["backend"])


def _numbers(*names: str) -> list[int]:
    missing = [name for name in names if name not in os.environ]
    if missing:
        raise RuntimeError(
            f"the environment has no {missing[0]}, which a launcher of this kind sets: start the "
            "script with it, or call launch()"
        )
    return [int(os.environ[name]) for name in names]
