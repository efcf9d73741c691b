"""``stoker explain``: show what a run would do, without training."""

import argparse

from stoker.cli.common import OK, add_config, frozen_imports
from stoker.cli.output import emit
from stoker.core.errors import ConfigError


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
    text = [line for title, ls in found.items() for line in (title, "─" * len(title), *ls, "")]
    conflict = "conflict: "
    emit(
        "explain",
        text,
        steps_per_epoch=job.steps_per_epoch,
        total_steps=job.total_steps,
        conflicts=[x.removeprefix(conflict) for x in text if x.startswith(conflict)],
        sections=found,
    )
    return OK
