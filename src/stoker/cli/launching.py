"""A command in several processes: the config is checked once, then all of them run the command."""

import argparse
import os
from collections.abc import Callable
from pathlib import Path

from stoker import launch
from stoker.build import layout_of
from stoker.config import ConfigError, load
from stoker.config.run_section import RunConfig, read

_FLAGS = ("nproc", "on", "workers", "address", "max_restarts")

Command = Callable[[argparse.Namespace], int]


def wants_processes(options: argparse.Namespace) -> bool:
    """Whether processes are to be started; else this is the one, or one that was started."""
    return any(getattr(options, flag) is not None for flag in _FLAGS)


def in_processes(command: Command, options: argparse.Namespace) -> int:
    """Run the command in each of the processes that the options ask for; its exit code on rank 0.

    Raises:
        ConfigError: the config or the options cannot be; no process was started.
    """
    if options.nproc is None and options.on is None:
        raise ConfigError(
            "say how many processes: --nproc N, or --on ray or spark with --workers N"
        )
    run: RunConfig = read(
        load(options.config, options.overrides, allow=options.allow).check()["run"]
    )
    try:
        layout_of(run).filled(options.nproc or options.workers or 1)
    except ValueError as error:
        raise ConfigError(str(error)) from error
    theirs = argparse.Namespace(**{**vars(options), **dict.fromkeys(_FLAGS)})
    try:
        code: int = launch.run(
            _in_process,
            command,
            theirs,
            os.getcwd(),
            nproc=1 if options.nproc is None else options.nproc,
            on=options.on,
            workers=options.workers,
            address=options.address,
            storage=_storage(run) if options.on == "ray" else None,
            max_restarts=options.max_restarts or 0,
            dead_after=run.dead_after if options.on is None else _changed(run, "dead_after"),
            grace=run.grace if options.on is None else None,
        )
    except (ValueError, ImportError) as error:
        raise ConfigError(str(error)) from error
    return code


def _changed(run: RunConfig, name: str) -> float | None:
    """The value of a field, None where it is the usual one."""
    value: float = getattr(run, name)
    return None if value == getattr(RunConfig(), name) else value


def _in_process(command: Command, options: argparse.Namespace, folder: str) -> int:
    os.chdir(folder)  # on a cluster, too, paths are those that were typed
    return command(options)


def _storage(run: RunConfig) -> str | None:
    """Where Ray keeps what it is told: beside the runs."""
    return str(Path(run.dir) / "ray") if run.dir is not None else None
