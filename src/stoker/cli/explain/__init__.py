"""``stoker explain``: show what a run would do, without training."""

import argparse

from stoker.cli.common import OK, add_config, frozen_imports
from stoker.config.yaml_text import ConfigError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add_config(parser)


def run(options: argparse.Namespace) -> int:
    """Print the loop, the metrics, the parameters, the calendar and the learning rate."""
    with frozen_imports():
        from stoker.cli.explain.sections import sections
        from stoker.cli.jobs import job_from
    job = job_from(options)
    try:
        found = {title: list(lines) for title, lines in sections(job).items()}
    except ValueError as error:
        raise ConfigError(str(error)) from error
    for title, lines in found.items():
        print(f"{title}\n{'─' * len(title)}")
        print("\n".join(lines) + "\n")
    return OK
