"""``stoker prove``: kill a training again and again, and see whether it ends at the same bits."""

import argparse
import sys

from stoker.cli.exit_codes import FAILED, OK
from stoker.config import ConfigError, load
from stoker.core.errors import StokerError
from stoker.testing.kill import KINDS, check_kinds
from stoker.testing.proof import prove as proved
from stoker.testing.proof import working_folder


def prove(options: argparse.Namespace) -> int:
    """Print what happens and the verdict."""
    config = load(options.config, options.overrides, allow=options.allow)
    kinds = KINDS if options.at is None else tuple(filter(None, options.at.split(",")))
    try:
        check_kinds(kinds)
    except ValueError as error:
        raise ConfigError(f"--at: {error}") from error
    for name in ("kills", "nproc"):
        if (count := getattr(options, name)) < 1:
            raise ConfigError(f"--{name} is a whole number from 1, got {count}")
    with working_folder(keep=options.keep) as folder:
        if options.keep:
            print(f"runs, records and logs stay in {folder}", flush=True)
        try:
            verdict = proved(
                config,
                folder,
                kills=options.kills,
                at=kinds,
                seed=options.seed,
                nproc=options.nproc,
                log=_say,
            )
        except ConfigError:
            raise
        except StokerError as error:
            print(f"stoker: {error}", file=sys.stderr)
            return FAILED
    print(f"\n{verdict.text()}")
    if not verdict.same and not options.keep:
        print("note: with --keep, both runs stay to be looked at")
    return OK if verdict.same else FAILED


def _say(line: str) -> None:
    print(line, flush=True)
