"""``stoker profile``: where the time of a step goes, and the largest avoidable cost."""

import argparse
import sys
from tempfile import TemporaryDirectory
from typing import Any

from stoker.cli import launching
from stoker.cli.common import (
    FAILED,
    INTERRUPTED,
    OK,
    add_config,
    frozen_imports,
    given_path,
    output_path,
)
from stoker.core.errors import ConfigError
from stoker.rundir.states import ending_of
from stoker.storage import local_path

_VAL_BATCHES = 2


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add_config(parser)
    parser.add_argument(
        "--steps",
        type=int,
        default=50,
        metavar="N",
        help="Steps to time; as many again are counted. Default: 50.",
    )
    parser.add_argument(
        "--warmup", type=int, default=5, metavar="N", help="Steps before them. Default: 5."
    )
    parser.add_argument(
        "--trace", metavar="FILE", help="Write a trace for chrome://tracing or Perfetto."
    )
    parser.add_argument(
        "-o", "--output", metavar="FILE", help="Write the measurements to a .json file."
    )
    launching.add_nproc(parser)
    parser.set_defaults(folder=None)


def run(options: argparse.Namespace) -> int:
    """Train a few steps in a temporary folder and print what they cost."""
    for name, least in (("steps", 1), ("warmup", 0)):
        if (count := getattr(options, name)) < least:
            raise ConfigError(f"--{name} must be at least {least}, got {count}")
    if options.trace is not None:
        output_path(options.trace, "--trace")
    if options.output is not None:
        output_path(options.output, "--output", (".json",))
    if options.folder is None:
        with TemporaryDirectory(prefix="stoker-profile-", ignore_cleanup_errors=True) as folder:
            options.folder = folder
            return run(options)
    if launching.is_requested(options):
        return launching.launch(run, options)
    with frozen_imports():
        from stoker.build import build_job
        from stoker.cli.profile.summary import print_summary
        from stoker.core import dist
        from stoker.hooks import CostReport
    job = build_job(_short_config(options))
    report = next(hook for hook in job.trainer.hooks if isinstance(hook, CostReport))
    history = job.fit()
    if ending_of(history.stop_reason).interrupted:
        print("stoker: stopped by Ctrl-C before the profile was complete", file=sys.stderr)
        return INTERRUPTED
    dist.barrier()  # rank 0 must not delete the folder while others use it
    if dist.is_main() and report.costs is not None:
        print_summary(report.costs, job, options)
    if report.costs is None:
        print(f"stoker: the run ended too early: {history.stop_reason}", file=sys.stderr)
    return FAILED if report.costs is None else OK


def _short_config(options: argparse.Namespace) -> Any:
    """Return the config with a `CostReport` hook, limited to the steps of the profile."""
    from stoker.config import load

    path = given_path(options.config, "the config")
    given = load(path, options.overrides, allow=options.allow).check()
    targets = [str(getattr(hook, "target", "")) for hook in given.get("hooks") or []]
    if any(target.endswith("CostReport") for target in targets):
        raise ConfigError("the config already has a CostReport hook: run it with 'stoker train'")
    run = given["run"]
    steps = options.warmup + 2 * options.steps
    hook = f"{{type: CostReport, steps: {options.steps}, warmup: {options.warmup}"
    if options.trace is not None:
        trace = local_path(options.trace, "--trace").absolute()
        hook += f", trace: {str(trace)!r}"
    changes = [
        f"+hooks={hook}}}",
        f"run.max_steps={steps}",
        # a scheduler that steps once per epoch needs the number of epochs
        f"run.epochs={steps if run['lr_step'] == 'epoch' else 'null'}",
        f"run.limit_val_batches={_VAL_BATCHES}",
        "run.resume=auto",
    ]
    if options.quiet:
        changes.append("run.progress=false")
    if run["dir"] is not None:
        changes.append(f"run.dir={options.folder}")
    return load(path, [*options.overrides, *changes], allow=options.allow)
