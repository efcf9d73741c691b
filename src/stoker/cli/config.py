"""``stoker config``: print the resolved config, or where one value comes from."""

import argparse

from stoker.cli.common import OK, add_config, frozen_imports, given_path
from stoker.cli.output import emit


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add_config(parser)
    parser.add_argument("--why", metavar="KEY", help="Print where the value of KEY comes from.")
    parser.add_argument(
        "--check",
        action="store_true",
        help="Also check every argument against the signature of the call it belongs to.",
    )


def run(options: argparse.Namespace) -> int:
    """Print the config as YAML, or the origin of one value."""
    with frozen_imports():
        from yaml import safe_load

        from stoker.config import load
    path = given_path(options.config, "the config")
    config = load(path, options.overrides, allow=options.allow)
    if options.check:
        config.check()
    if options.why is not None:
        origin = config.why(options.why)
        emit("config_value", origin, key=options.why, text=origin)
    else:
        text = config.text()
        emit("config", text.removesuffix("\n"), config=safe_load(text))
    return OK
