"""Processes on this machine, under torch's elastic agent."""

from collections.abc import Callable
from typing import Any

from stoker.launch.processes import start_forkserver

_FOR_REPLACEMENTS = ("torch.distributed.fsdp", "torch.distributed.tensor", "stoker.trainer")
"""What a process that trains imports, which takes seconds."""


def launch(
    fn: Callable[..., Any],
    args: tuple[Any, ...],
    *,
    nproc: int = 1,
    max_restarts: int = 0,
    dead_after: float = 10.0,
    grace: float = 30.0,
    elastic: tuple[int, int] | None = None,
) -> Any:
    """Run the function in ``nproc`` processes of this machine and return the value of rank 0."""
    start_forkserver(*(_FOR_REPLACEMENTS if elastic is not None else ()))
    from stoker.launch.agent import run_agent

    return run_agent(
        fn,
        args,
        nproc=nproc,
        max_restarts=max_restarts,
        dead_after=dead_after,
        grace=grace,
        elastic=elastic,
    )
