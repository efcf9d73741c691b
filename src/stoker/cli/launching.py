"""Run a command in several processes: check the config once, then start them."""

import argparse
import os
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

from stoker.cli import output
from stoker.cli.common import frozen_imports
from stoker.core.errors import ConfigError

_OPTIONS = ("nproc", "on", "workers", "address", "max_restarts", "elastic")

Command = Callable[[argparse.Namespace], int]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options that start processes."""
    group = parser.add_argument_group("several processes")
    group.add_argument("--nproc", type=int, metavar="N", help="Processes on this machine.")
    group.add_argument(
        "--on",
        metavar="LAUNCHER",
        help="Launcher: local (default), env (under torchrun or srun), ray, spark, or one that an "
        "installed package registers.",
    )
    group.add_argument("--workers", type=int, metavar="N", help="Processes on the cluster.")
    group.add_argument(
        "--address", metavar="WHERE", help="Address of the cluster. Default: from the environment."
    )
    group.add_argument(
        "--max-restarts", type=int, metavar="K", help="Restarts after a failure. Default: 0."
    )
    add_elastic(group)


def add_elastic(parser: Any) -> None:
    """Declare ``--elastic``."""
    parser.add_argument(
        "--elastic",
        type=_range,
        metavar="MIN:MAX",
        help="Continue without processes that are lost, and with new ones, from MIN to MAX. Needs "
        "run.parallel.logical_ranks. On Ray, the job is restarted.",
    )


def _range(text: str) -> tuple[int, int]:
    least, _, most = text.partition(":")
    if not (least.isdecimal() and most.isdecimal()):
        raise argparse.ArgumentTypeError(f"expected MIN:MAX, such as 1:4, got {text!r}")
    return int(least), int(most)


def add_nproc(parser: argparse.ArgumentParser) -> None:
    """Declare ``--nproc`` alone, for a command that runs only on this machine."""
    parser.add_argument("--nproc", type=int, metavar="N", help="Processes on this machine.")
    parser.set_defaults(**dict.fromkeys(_OPTIONS[1:]))


def is_requested(options: argparse.Namespace) -> bool:
    """Return whether the options ask for processes to be started."""
    return any(getattr(options, name) is not None for name in _OPTIONS)


def launch(command: Command, options: argparse.Namespace) -> int:
    """Run the command in every requested process and return the exit code of rank 0.

    Raises:
        ConfigError: the config or the options are invalid; no process has been started.
    """
    if options.nproc is None and options.on is None:
        raise ConfigError("pass the number of processes: --nproc N, or --on LAUNCHER --workers N")
    with frozen_imports():
        from stoker import launch
        from stoker.build import layout_of
        from stoker.config import load
        from stoker.config.run_section import RunConfig, read
    config = load(options.config, options.overrides, allow=options.allow)
    run: RunConfig = read(config.check()["run"])
    try:
        accepted = launch.accepted_options(options.on)
        if {"nproc", "workers"} & set(accepted):
            layout_of(run).filled(options.nproc or options.workers or 1)
        if options.elastic is not None:
            _check_elastic(layout_of(run), options.elastic[1], restarts="nproc" not in accepted)
        code, lines = launch.run(
            _run_in_folder,
            command,
            argparse.Namespace(**{**vars(options), **dict.fromkeys(_OPTIONS)}),
            os.getcwd(),
            **{name: getattr(options, name) for name in _OPTIONS},
            **_options_from_config(run, accepted),
        )
    except (ValueError, ImportError) as error:
        raise ConfigError(str(error)) from error
    output.replay(lines)
    return int(code)


def _check_elastic(layout: Any, most: int, *, restarts: bool) -> None:
    """Reject a layout that cannot be elastic.

    Args:
        layout: as the config describes it.
        most: the largest number of processes.
        restarts: whether the launcher restarts all processes when one is lost.
    """
    if layout.logical_ranks is None:
        raise ValueError(
            "--elastic needs logical ranks: set run.parallel.logical_ranks=N, with N at least "
            "the largest number of processes"
        )
    if layout.filled(most).shard > 1 and not restarts:
        raise ValueError(
            "--elastic cannot be combined with run.parallel.shard, because the shards of a process "
            "are lost with it: set run.parallel.replicate=-1 instead"
        )


def _options_from_config(run: Any, accepted: Collection[str]) -> dict[str, Any]:
    """Return the launcher options that ``run`` sets.

    A changed ``run.dead_after`` is passed even to a launcher that rejects it, with an error.
    """
    found: dict[str, Any] = {}
    if "storage" in accepted and run.dir is not None:
        found["storage"] = str(Path(run.dir) / "ray")
    if "dead_after" in accepted or run.dead_after != type(run)().dead_after:
        found["dead_after"] = run.dead_after
    if "grace" in accepted:
        found["grace"] = run.grace
    return found


def _run_in_folder(
    command: Command, options: argparse.Namespace, folder: str
) -> tuple[int, list[str]]:
    """Return the exit code, and the results: the launcher prints them, once and in order."""
    os.chdir(folder)  # relative paths mean the same on a cluster
    with output.collected(json=options.json, quiet=options.quiet) as lines:
        return command(options), lines
