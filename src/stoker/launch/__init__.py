"""Start the processes of a job: on this machine, on Ray, on Spark, or through your own launcher.

Nothing here knows about training: a launcher runs one function in every process. See
`stoker.launch.launchers` for how a launcher is found and how to add one.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from stoker.core.calls import explain_calls
from stoker.core.errors import RankFailed
from stoker.launch import launchers

__all__ = ["RankFailed", "accepted_options", "run"]

_HINTS = {"nproc": "workers", "workers": "nproc"}


def run(
    fn: Callable[..., Any],
    *args: Any,
    on: str | None = None,
    nproc: int | None = None,
    workers: int | None = None,
    address: str | None = None,
    storage: str | Path | None = None,
    max_restarts: int | None = None,
    dead_after: float | None = None,
    grace: float | None = None,
    elastic: tuple[int, int] | None = None,
) -> Any:
    """Call ``fn(*args)`` in several processes, each of which knows its rank; return rank 0's value.

    >>> def train(rate):
    ...     trainer = Trainer(Engine(…))          # an Engine connects to the other ranks
    ...     return trainer.fit(loader, epochs=3)[-1]
    >>> launch.run(train, 0.1, nproc=4)
    >>> launch.run(train, 0.1, on="ray", workers=8)

    A process that raises, is killed or exits with a code other than 0 ends the job. Its error is
    printed first and once. With ``max_restarts`` the function is called again in new processes; a
    `Trainer` with a run folder then resumes from its newest checkpoint.

    Each launcher accepts some of the options below and rejects the others.

    Args:
        fn: a function at the top level of a module; with cloudpickle installed, any function.
        args: its arguments.
        on: the launcher: "local" (default), "env" for a process that torchrun or Slurm has
            started, "ray", "spark", or one that an installed package registers.
        nproc: number of processes on this machine ("local"). Default: 1.
        workers: number of processes on the cluster ("ray", "spark"). Default: 1.
        address: the cluster: the address that ``ray start`` printed, or the Spark master. Default:
            from the environment or the active session, else a new instance on this machine.
        storage: a folder that all machines can reach, for the files of Ray Train ("ray").
        max_restarts: how often a failed job is restarted. Default: 0.
        dead_after: seconds within which the job ends after one process died ("local").
            Default: 10.
        grace: seconds allowed for the final checkpoint after SIGTERM ("local"). Default: 30.
        elastic: the least and the largest number of processes that the job may have ("local",
            "ray"). The others continue without one that is lost, and one that is started later
            joins them; this needs a layout with logical ranks. Ray restarts the job instead, with
            as many workers as fit. Default: every process is needed.

    Raises:
        RankFailed: a process failed and no restarts are left.
        ValueError: an unknown launcher, or an option that is invalid or not accepted by it.
    """
    given: dict[str, Any] = {
        "nproc": nproc,
        "workers": workers,
        "address": address,
        "storage": storage,
        "max_restarts": max_restarts,
        "dead_after": dead_after,
        "grace": grace,
        "elastic": elastic,
    }
    options = {name: value for name, value in given.items() if value is not None}
    launch = launchers.get(on or launchers.DEFAULT)
    _check_accepted(options, on or launchers.DEFAULT)
    for name, least in (("nproc", 1), ("workers", 1), ("max_restarts", 0)):
        if name in options and options[name] < least:
            raise ValueError(f"{name} must be at least {least}, got {options[name]}")
    for name in ("dead_after", "grace"):
        if name in options and options[name] <= 0:
            raise ValueError(f"{name} must be a positive number of seconds, got {options[name]}")
    if elastic is not None:
        _check_range(elastic, (nproc or 1) if "nproc" in accepted_options(on) else None)
    return launch(fn, args, **options)


def _check_range(elastic: tuple[int, int], nproc: int | None) -> None:
    least, most = elastic
    if nproc is None and not 1 <= least <= most:
        raise ValueError(f"elastic is {least}:{most}, expected 1 <= least <= most")
    if nproc is not None and not 1 <= least <= nproc <= most:
        raise ValueError(
            f"elastic is {least}:{most} and nproc is {nproc}, expected 1 <= least <= nproc <= most"
        )


def accepted_options(on: str | None = None) -> tuple[str, ...]:
    """Return the options of `run` that a launcher accepts.

    Raises:
        ValueError: the launcher does not exist.
    """
    return launchers.options_of(launchers.get(on or launchers.DEFAULT))


def _check_accepted(options: dict[str, Any], on: str) -> None:
    accepted = accepted_options(on)
    for name, value in options.items():
        if name not in accepted:
            instead = _HINTS.get(name, "")
            hint = f": pass {instead}={value}" if instead in accepted else ""
            raise ValueError(
                f"{name} is not an option of the {on!r} launcher "
                f"(it accepts {', '.join(accepted) or 'none'}){hint}"
            )


explain_calls(globals(), __all__)
