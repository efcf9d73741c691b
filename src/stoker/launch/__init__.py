"""Starting the processes of a job: on this machine, on Ray or on Spark.

Under torchrun and Slurm they are started already: `stoker.core.dist.connect` reads the environment.
Nothing here knows about training: one function runs in every process.
"""

from collections.abc import Callable
from typing import Any, Literal

from stoker.core.errors import RankFailed, did_you_mean
from stoker.launch.processes import warm_up

__all__ = ["RankFailed", "run"]


def run(
    fn: Callable[..., Any],
    *args: Any,
    nproc: int = 1,
    on: Literal["ray", "spark"] | None = None,
    workers: int | None = None,
    address: str | None = None,
    storage: str | None = None,
    max_restarts: int = 0,
    dead_after: float | None = None,
    grace: float | None = None,
) -> Any:
    """Call ``fn(*args)`` in several processes, each of which knows its rank; what rank 0 returned.

    >>> def train(rate):
    ...     trainer = Trainer(Engine(…))          # an Engine joins the others by itself
    ...     return trainer.fit(loader, epochs=3)[-1]
    >>> launch.run(train, 0.1, nproc=4)
    >>> launch.run(train, 0.1, on="ray", workers=8)

    A process that raises, is killed or leaves with an exit code ends the job. Its error is printed
    first and once. With ``max_restarts`` the function is then called again, in new processes; a
    `Trainer` with a run folder goes on from its newest checkpoint.

    Args:
        fn: a function at the top of a module; with cloudpickle any function.
        args: what it is called with.
        nproc: how many processes on this machine.
        on: "ray" or "spark", to run on a cluster instead.
        workers: how many processes there.
        address: the cluster: of Ray what ``ray start`` printed, of Spark its master. Without it
            that of the environment or of the session in progress, else one on this machine.
        storage: for Ray: a folder that all machines can reach, for what it keeps of the run.
        max_restarts: how often a job that failed is started again.
        dead_after: on this machine: seconds in which the whole job has ended after the death of
            one process; 10 when not given.
        grace: on this machine: seconds that processes have to save and leave in after SIGTERM;
            30 when not given.

    Raises:
        RankFailed: a process failed, and there are no restarts left.
    """
    _check(nproc, on, workers, address, storage, max_restarts, dead_after, grace)
    if on is None:
        warm_up()
        from stoker.launch.local import run_here

        return run_here(
            fn,
            args,
            nproc=nproc,
            max_restarts=max_restarts,
            dead_after=10.0 if dead_after is None else dead_after,
            grace=30.0 if grace is None else grace,
        )
    if on == "ray":
        from stoker.launch.ray import run_on_ray

        return run_on_ray(fn, args, workers or 1, address, storage, max_restarts)
    from stoker.launch.spark import run_on_spark

    return run_on_spark(fn, args, workers or 1, address, max_restarts)


def _check(
    nproc: int,
    on: str | None,
    workers: int | None,
    address: str | None,
    storage: str | None,
    max_restarts: int,
    dead_after: float | None,
    grace: float | None,
) -> None:
    near = did_you_mean(str(on), ("ray", "spark"))
    if on not in (None, "ray", "spark"):
        raise ValueError(f"on is 'ray' or 'spark', got {on!r}{near}")
    for name, value, least in (
        ("nproc", nproc, 1),
        ("workers", workers, 1),
        ("max_restarts", max_restarts, 0),
    ):
        if value is not None and value < least:
            raise ValueError(f"{name} is a whole number from {least}, got {value}")
    _check_seconds("dead_after", dead_after, on)
    _check_seconds("grace", grace, on)
    if on is None:
        for name, given in (("workers", workers), ("address", address), ("storage", storage)):
            if given is not None:
                raise ValueError(f"{name} is about a cluster: say with it whether on ray or spark")
    elif nproc != 1:
        raise ValueError(f"nproc is about this machine: on {on} give workers={nproc}")
    elif on == "spark" and storage is not None:
        raise ValueError("storage is about Ray; Spark keeps nothing of a run")


def _check_seconds(name: str, seconds: float | None, on: str | None) -> None:
    if seconds is not None and seconds <= 0:
        raise ValueError(f"{name} is a number of seconds above 0, got {seconds}")
    if seconds is not None and on is not None:
        raise ValueError(f"{name} is about processes on this machine: {on} decides it itself")
