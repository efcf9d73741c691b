"""``stoker prove``: kill a training repeatedly and check that it ends at the same bits."""

import argparse
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from stoker.cli.common import FAILED, OK, add_config, frozen_imports
from stoker.cli.output import emit, emit_error, note
from stoker.core.errors import ConfigError, StokerError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add_config(parser)
    parser.add_argument(
        "--kills", type=int, default=5, metavar="N", help="Number of kills. Default: 5."
    )
    parser.add_argument(
        "--at",
        metavar="KINDS",
        help="Where to kill: a comma-separated list of step, save, eval and data. Default: all.",
    )
    parser.add_argument(
        "--seed", type=int, default=0, help="Seed of the moments of the kills. Default: 0."
    )
    parser.add_argument(
        "--nproc", type=int, default=1, metavar="N", help="Processes on this machine. Default: 1."
    )
    parser.add_argument(
        "--elastic",
        action="store_true",
        help="Lose and add single processes while the others continue. Needs --nproc of 2 or more "
        "and run.parallel.logical_ranks.",
    )
    parser.add_argument(
        "--keep", action="store_true", help="Keep the folder with both runs, records and logs."
    )


def run(options: argparse.Namespace) -> int:
    """Print the progress and the verdict."""
    with frozen_imports():
        from stoker.config import load
        from stoker.testing.attempt import KINDS, check_kinds
        from stoker.testing.proof import prove, working_folder
    config = load(options.config, options.overrides, allow=options.allow)
    config.check("model", "optimizer", "train_loader")
    kinds = KINDS if options.at is None else tuple(filter(None, options.at.split(",")))
    try:
        check_kinds(kinds)
    except ValueError as error:
        raise ConfigError(f"--at: {error}") from error
    for name in ("kills", "nproc"):
        if (count := getattr(options, name)) < 1:
            raise ConfigError(f"--{name} must be at least 1, got {count}")
    if options.elastic:
        _check_elastic(options, config)
    with working_folder(keep=options.keep) as folder:
        if options.keep:
            note(f"runs, records and logs are kept in {folder}")
        try:
            verdict = prove(
                config,
                folder,
                kills=options.kills,
                at=kinds,
                seed=options.seed,
                nproc=options.nproc,
                elastic=options.elastic,
                log=note,
            )
        except ConfigError:
            raise
        except StokerError as error:
            print(f"stoker: {error}", file=sys.stderr)
            emit_error([str(error)], FAILED)
            return FAILED
    _emit(verdict, folder if options.keep else None)
    if not verdict.same and not options.keep:
        note("note: pass --keep to inspect both runs afterwards")
    return OK if verdict.same else FAILED


def _check_elastic(options: argparse.Namespace, config: Any) -> None:
    if options.at is not None:
        raise ConfigError("--at cannot be combined with --elastic: events come at random moments")
    if options.nproc < 2:
        raise ConfigError(f"--elastic needs --nproc of 2 or more, got {options.nproc}")
    from stoker.config.run_section import read

    if read(config.check()["run"]).parallel.logical_ranks is None:
        raise ConfigError("--elastic needs logical ranks: set run.parallel.logical_ranks=N")


def _emit(verdict: Any, folder: Path | None) -> None:
    emit(
        "prove",
        f"\n{verdict.text()}",
        same=verdict.same,
        steps=verdict.steps,
        kills=[asdict(kill) for kill in verdict.kills],
        compared=verdict.compared,
        notes=verdict.notes,
        text=verdict.text(),
        folder=folder,
    )
