"""``stoker ckpt prune``: remove old checkpoints by the retention rules of training."""

import argparse
from pathlib import Path
from typing import Literal

from stoker.checkpoint import Best, CheckpointError, Checkpoints
from stoker.checkpoint.format.manifest import Manifest, metrics_in
from stoker.cli.ckpt.find import find_all, folder_of, is_checkpoint, size_of
from stoker.cli.common import FAILED, OK, given_path
from stoker.cli.output import emit
from stoker.core.errors import ConfigError, did_you_mean
from stoker.hooks.base.monitor import Monitor
from stoker.storage import format_size


def prune(options: argparse.Namespace) -> int:
    """Remove old checkpoints, or print which would be removed."""
    path = given_path(options.path)
    if is_checkpoint(path):
        raise ConfigError(f"'{path}' is a single checkpoint, expected a folder of checkpoints")
    find_all(path)  # raises if there are none
    folder = folder_of(path)
    rule = _rule(options, folder)
    if options.dry_run:
        planned = rule.prune(dry_run=True)
        _emit({one: size_of(one) for one in planned}, folder, dry_run=True)
        return OK
    with rule:
        planned = rule.prune(dry_run=True)
        sizes = {one: size_of(one) for one in planned}
        removed = rule.prune()
    _emit({one: sizes[one] for one in removed}, folder, dry_run=False)
    return OK if removed == planned else FAILED


def _emit(sizes: dict[Path, int], folder: Path, *, dry_run: bool) -> None:
    """Print what was removed, or would be, with the size of each."""
    left = [one for one in Checkpoints(folder).list() if one not in sizes]
    be, size = "would be " if dry_run else "", sum(sizes.values())
    lines = [f"{one.name} {be}removed ({format_size(part)})" for one, part in sizes.items()]
    names = ", ".join(one.name for one in left)
    lines.append(f"{len(sizes)} {be}removed, {format_size(size)}; {len(left)} {be}kept: {names}")
    emit("prune", lines, removed=list(sizes), kept=left, size=size, dry_run=dry_run)


def _rule(options: argparse.Namespace, folder: Path) -> Checkpoints:
    if options.mode is not None and options.best is None:
        raise ConfigError("--mode needs --best METRIC")
    best = None
    try:
        if options.best is not None:
            _check_known(options.best, folder)
            best = Best(options.best, _mode(options.best, options.mode))
        return Checkpoints(folder, keep=options.keep, keep_every=options.keep_every, best=best)
    except ConfigError:
        raise
    except ValueError as error:
        message = str(error).replace("mode='min' or 'max'", "--mode min or --mode max")
        raise ConfigError(message) from error


def _mode(name: str, mode: str | None) -> Literal["min", "max"]:
    if mode not in (None, "min", "max"):
        raise ValueError(f"--mode must be min or max, got '{mode}'")
    return Monitor(name, "min" if mode == "min" else "max" if mode == "max" else None).mode


def _check_known(metric: str, folder: Path) -> None:
    """Reject a metric that no checkpoint has, because it would keep nothing."""
    known: set[str] = set()
    for path in Checkpoints(folder).list():
        try:
            known |= metrics_in(Manifest.read(path).info).keys()
        except CheckpointError:
            continue
    if metric not in known:
        there = ", ".join(sorted(known)) or "none"
        raise ConfigError(
            f"no checkpoint has a metric '{metric}'{did_you_mean(metric, known)} "
            f"(available: {there})"
        )
