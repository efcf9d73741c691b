"""``stoker env``: print what ``env.json`` of a run records."""

import argparse
import json

from stoker.cli.common import OK, frozen_imports
from stoker.cli.output import emit


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare no options."""


def run(options: argparse.Namespace) -> int:
    """Print versions, hardware and the state of the code as JSON, without the diff."""
    with frozen_imports():
        from stoker.rundir.provenance import environment
    found = environment()
    if found["git"] is not None:
        found["git"].pop("diff")
    emit("env", json.dumps(found, indent=2), **found)
    return OK
