"""``stoker evaluate``: the metrics of trained weights on the validation data."""

import argparse

from stoker.cli import launching
from stoker.cli.common import OK, add_config, add_weights, frozen_imports


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add_config(parser)
    add_weights(parser)
    launching.add_arguments(parser)


def run(options: argparse.Namespace) -> int:
    """Print the metrics."""
    if launching.is_requested(options):
        return launching.launch(run, options)
    with frozen_imports():
        from stoker.cli.jobs import trained_job
        from stoker.core import dist
    for name, value in trained_job(options).evaluate().items():
        if dist.is_main():
            print(f"{name} {value:.6g}")
    return OK
