"""From the options of a command to a job: built, and with trained weights."""

import argparse
import sys
from collections.abc import Iterable
from pathlib import Path

from stoker.build import Job, build_job
from stoker.checkpoint import Checkpoints
from stoker.checkpoint.format.names import step_in_name
from stoker.cli.common import frozen_imports, given_path
from stoker.config import ConfigError, load
from stoker.core import dist
from stoker.core.errors import CheckpointError
from stoker.core.log import get_logger
from stoker.hooks import Hook
from stoker.resume.weights import load_weights
from stoker.rundir import files
from stoker.rundir.folder import RunFolder
from stoker.rundir.identity import list_changes, params_changes
from stoker.storage import display, store_url, working_folder

_log = get_logger()

_NOT_TRAINED = ("val_loader", "predict_loader", "hooks")
"""The parts of a config that trained weights do not depend on."""


def job_from(
    options: argparse.Namespace, *, training: bool = True, hooks: Iterable[Hook] = ()
) -> Job:
    """Build the job that the config and the overrides describe, with more hooks that observe."""
    silent = ["run.progress=false"] if options.quiet else []
    if store_url(options.config, "the config") is not None:
        options.config = str(given_path(options.config, "the config"))
    config = load(options.config, [*options.overrides, *silent], allow=options.allow)
    with frozen_imports():
        config.faults()  # imports the modules that the config names
    return build_job(config, training=training, hooks=hooks)


def trained_job(options: argparse.Namespace) -> tuple[Job, Path]:
    """Build the job without its training parts, with trained weights; return also their file."""
    if options.weights and not (given := given_path(options.weights, "--weights")).is_file():
        what = "is a folder" if given.is_dir() else "does not exist"
        raise ConfigError(f"--weights '{given}' {what}, expected a .safetensors file")
    job = job_from(options, training=False)
    path = _weights_file(options, job)
    try:
        mismatches = load_weights(job.trainer.engine.model, path, log=False)
    except CheckpointError as error:
        raise ConfigError(f"the weights in '{path}' do not fit this model: {error}") from error
    found = [f"{kind}: {', '.join(names)}" for kind, names in mismatches.items() if names]
    if found:
        raise ConfigError(f"the weights in '{path}' do not fit this model: {'; '.join(found)}")
    if dist.is_main() and not options.quiet:
        print(f"weights of {display(path)}", file=sys.stderr)
    return job, path


def _weights_file(options: argparse.Namespace, job: Job) -> Path:
    """Return the file passed as ``--weights``, or the newest weights or checkpoint of the run."""
    if options.weights:
        return given_path(options.weights, "--weights")
    folders = [Path(options.config)] if Path(options.config).is_dir() else _runs_of(job)
    for folder in folders:
        last = folder / files.WEIGHTS
        newest = Checkpoints(folder / files.CHECKPOINTS).newest()
        if last.is_file() and (newest is None or _step_of(last) >= _step_of(newest)):
            return last
        if newest is not None:
            return newest
    where = f"'{folders[0]}'" if folders else f"'{job.run.dir}'"
    raise ConfigError(
        f"there are no weights in {where}: train first (stoker train {options.config}), or pass "
        "--weights FILE"
    )


def _runs_of(job: Job) -> list[Path]:
    """Return the run of this config, or else the runs of its name, the most similar first.

    Other data to evaluate or predict on makes no other run.
    """
    if job.run.dir is None:
        return []
    tree = {k: v for k, v in (job.trainer.params or {}).items() if k not in _NOT_TRAINED}
    runs = RunFolder(working_folder(job.run.dir) / (job.run.name or job.config.name)).runs()
    changes = {run: params_changes(run, tree, _NOT_TRAINED) for run in reversed(runs)}
    nearest = sorted(changes, key=lambda run: len(changes[run]))
    if not nearest or not changes[nearest[0]]:
        return nearest[:1]
    _log.warning(
        f"no run of {job.config.name} was trained with this config; the nearest, {nearest[0]}, "
        f"differs: {list_changes(changes[nearest[0]])}"
    )
    return nearest


def _step_of(path: Path) -> int:
    """Return the step at which a weights file or a checkpoint was saved."""
    if (step := step_in_name(path.name)) is not None:
        return step
    from safetensors import safe_open

    with safe_open(path, "pt") as file:
        return int((file.metadata() or {}).get("step", 0))
