"""``stoker ckpt prune``: remove old checkpoints by the retention rules of training."""

import argparse
from pathlib import Path
from typing import Literal

from stoker.checkpoint import Best, CheckpointError, Checkpoints
from stoker.checkpoint.format.manifest import Manifest, metrics_in
from stoker.cli.ckpt.find import find_all, folder_of, is_checkpoint, size_of
from stoker.cli.common import FAILED, OK
from stoker.config.yaml_text import ConfigError
from stoker.core.errors import did_you_mean
from stoker.hooks.base.monitor import Monitor
from stoker.storage import format_size, local_path


def prune(options: argparse.Namespace) -> int:
    """Remove old checkpoints, or print which would be removed."""
    path = local_path(options.path)
    if is_checkpoint(path):
        raise ConfigError(f"'{path}' is a single checkpoint, expected a folder of checkpoints")
    find_all(path)  # raises if there are none
    folder = folder_of(path)
    rule = _rule(options, folder)
    if options.dry_run:
        _print_plan(rule.prune(dry_run=True), folder)
        return OK
    with rule:
        planned = rule.prune(dry_run=True)
        sizes = {one: size_of(one) for one in planned}
        removed = rule.prune()
    for one in removed:
        print(f"{one.name} removed ({format_size(sizes[one])})")
    print(_summary(len(removed), sum(sizes[one] for one in removed), folder))
    return OK if removed == planned else FAILED


def _print_plan(paths: list[Path], folder: Path) -> None:
    for one in paths:
        print(f"{one.name} would be removed ({format_size(size_of(one))})")
    left = [one.name for one in Checkpoints(folder).list() if one not in paths]
    size = format_size(sum(map(size_of, paths)))
    print(f"{len(paths)} would be removed, {size}; {len(left)} would be kept: {', '.join(left)}")


def _summary(removed: int, size: int, folder: Path) -> str:
    left = [one.name for one in Checkpoints(folder).list()]
    return f"{removed} removed, {format_size(size)}; {len(left)} kept: {', '.join(left)}"


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
