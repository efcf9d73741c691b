"""A process that torchrun or Slurm has started: run the function here, as one of the ranks."""

import os
from collections.abc import Callable
from typing import Any


def launch(fn: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    """Call the function in this process, whose rank the environment defines."""
    from stoker.core import dist

    if dist.rendezvous_in(os.environ) is None:
        raise ValueError(
            "the 'env' launcher needs a process that torchrun or srun has started, and RANK, "
            "WORLD_SIZE, MASTER_ADDR and MASTER_PORT are not set here: start it with torchrun or "
            "srun, or pass nproc to start processes on this machine"
        )
    return fn(*args)
