"""The Engine and Trainer of Colossal-AI, with hooks as objects or as ``dict(type=…)``."""

from stoker.dialects.colossalai import (
    amp,
    builder,
    context,
    core,
    engine,
    logging,
    nn,
    registry,
    trainer,
    utils,
)
from stoker.dialects.colossalai.initialize import (
    get_default_parser,
    initialize,
    launch,
    launch_from_openmpi,
    launch_from_slurm,
    launch_from_torch,
)

__all__ = [
    "amp",
    "builder",
    "context",
    "core",
    "engine",
    "get_default_parser",
    "initialize",
    "launch",
    "launch_from_openmpi",
    "launch_from_slurm",
    "launch_from_torch",
    "logging",
    "nn",
    "registry",
    "trainer",
    "utils",
]
