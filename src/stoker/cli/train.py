"""``stoker train``: train the model that a config describes."""

import argparse
from pathlib import Path
from typing import Any

from stoker.cli import evaluate, launching
from stoker.cli.common import INTERRUPTED, OK, add_config, add_weights, frozen_imports
from stoker.cli.output import emit, note
from stoker.core.errors import ConfigError, Preempted
from stoker.rundir.states import ending_of
from stoker.storage import display, url_of


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add_config(parser)
    parser.add_argument(
        "--fast-dev-run",
        action="store_true",
        help="Run one batch of training and validation and write nothing.",
    )
    parser.add_argument("--eval-only", action="store_true", help="Same as 'stoker evaluate CFG'.")
    parser.add_argument(
        "--resume",
        metavar="HOW",
        help="auto, must, never or the path of a checkpoint. Same as run.resume=HOW.",
    )
    add_weights(parser)
    launching.add_arguments(parser)


def run(options: argparse.Namespace) -> int:
    """Train, and print where the run is stored."""
    _check_options(options)
    if options.resume is not None:
        options.overrides.append(f"run.resume={options.resume}")
        options.resume = None
    if launching.is_requested(options):
        return launching.launch(run, options)
    if options.eval_only:
        return evaluate.run(options)
    with frozen_imports():
        from stoker.cli.epoch_records import EpochRecords
        from stoker.cli.jobs import job_from
        from stoker.core import dist
    job = job_from(options, hooks=[EpochRecords()] if options.json else [])
    try:
        history = job.fit(fast_dev_run=options.fast_dev_run)
    except Preempted:
        if dist.is_main():
            _emit(job.trainer.run)
        raise
    code = INTERRUPTED if ending_of(history.stop_reason).interrupted else OK
    if not dist.is_main():
        return code
    if options.fast_dev_run:
        text = "one batch of training and validation succeeded; nothing was written"
        emit("train", text, **_fields(job.trainer.run))
        return OK
    folder = _emit(job.trainer.run)
    if folder is not None:
        note(
            f"next: stoker evaluate {_trained(folder, options)}, or change a value: "
            f"stoker train {options.config} optimizer.lr=…"
        )
    return code


def _trained(folder: Path, options: argparse.Namespace) -> str:
    """Return what 'stoker evaluate' finds the run by; a store does not have the user's modules."""
    changes = [one for one in options.overrides if _makes_another_run(one)]
    if not changes or url_of(folder) is not None:
        return " ".join([options.config, *changes])
    return str(folder)


def _emit(run: Any) -> Path | None:
    """Print where the run is stored, and return it."""
    fields = _fields(run)
    folder: Path | None = fields["run"]
    emit("train", f"the run is in {display(folder)}" if folder is not None else (), **fields)
    return folder


def _fields(run: Any) -> dict[str, Any]:
    state, why = ending_of(run.stop_reason)
    return {
        "run": run.dir if run.dir is not None and run.dir.exists() else None,
        "state": state,
        "why": why,
        "step": run.step,
        "epoch": run.epoch,
        "metrics": run.metrics,
    }


def _check_options(options: argparse.Namespace) -> None:
    """Reject options that would have no effect."""
    if options.weights is not None and not options.eval_only:
        raise ConfigError(
            "--weights is an option of --eval-only: add --eval-only to evaluate these weights; to "
            "train from a checkpoint, use 'run.resume=PATH'"
        )
    for name in ("fast_dev_run", "resume"):
        if options.eval_only and getattr(options, name):
            raise ConfigError(
                f"--eval-only does not train, so --{name.replace('_', '-')} has no effect: leave "
                "out one of them"
            )


def _makes_another_run(override: str) -> bool:
    from stoker.rundir.identity import MAY_CHANGE

    key = override.partition("=")[0].lstrip("~+")
    return key in ("run.name", "run.dir") or ".".join(key.split(".")[:2]) not in MAY_CHANGE
