"""``stoker evaluate``: the metrics of trained weights on the validation data."""

import argparse

from stoker.cli import launching
from stoker.cli.common import OK, add_config, add_weights, frozen_imports
from stoker.cli.output import emit


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
    job, weights = trained_job(options)
    metrics = job.evaluate()
    if dist.is_main():
        text = [f"{name} {value:.6g}" for name, value in metrics.items()]
        emit("evaluate", text, weights=weights, metrics=metrics)
    return OK
