"""Which checkpoints a path means, and how their sizes and ages are said."""

import sys
from pathlib import Path

from stoker.checkpoint import Checkpoints
from stoker.checkpoint.format.names import MANIFEST, step_in_name
from stoker.config.yaml_text import ConfigError
from stoker.core.errors import did_you_mean
from stoker.rundir import files

_EXPECTED = "expected a run folder, its checkpoints folder, or one checkpoint"


def is_checkpoint(path: Path) -> bool:
    """Whether a folder is a checkpoint or, by its name, was to be one."""
    return path.is_dir() and ((path / MANIFEST).exists() or step_in_name(path.name) is not None)


def folder_of(path: Path) -> Path:
    """The folder of checkpoints that a run folder, or that folder itself, means."""
    if not path.exists():
        beside = path.parent.iterdir() if path.parent.is_dir() else ()
        near = did_you_mean(path.name, [one.name for one in beside])
        raise ConfigError(f"there is no '{path}'{near}")
    if not path.is_dir():
        raise ConfigError(f"'{path}' is a file, {_EXPECTED}")
    inside = path / files.CHECKPOINTS
    return inside if inside.is_dir() else path


def all_in(path: Path) -> list[Path]:
    """Every checkpoint a path means, oldest first; those without a manifest, too."""
    if is_checkpoint(path):
        return [path]
    folder = folder_of(path)
    found = [
        one for one in folder.iterdir() if is_checkpoint(one) and step_in_name(one.name) is not None
    ]
    if not found:
        raise ConfigError(f"there is no checkpoint in '{folder}', {_EXPECTED}")
    return sorted(found, key=lambda one: step_in_name(one.name) or 0)


def one_in(path: Path) -> Path:
    """The checkpoint a path means: itself, or the newest whole one of a run, which is said."""
    if is_checkpoint(path):
        return path
    folder = folder_of(path)
    newest = Checkpoints(folder).newest()
    if newest is None:
        raise ConfigError(f"there is no whole checkpoint in '{folder}', {_EXPECTED}")
    print(f"checkpoint {newest}", file=sys.stderr)
    return newest


def size_of(path: Path) -> int:
    """The bytes of the files of a checkpoint."""
    return sum(file.stat().st_size for file in path.iterdir() if file.is_file())


def said_age(seconds: float) -> str:
    """A time that has passed, for people."""
    for limit, length, unit in ((60, 1, "s"), (3600, 60, "min"), (86400, 3600, "h")):
        if seconds < limit:
            return f"{max(seconds, 0) / length:.0f} {unit}"
    return f"{seconds / 86400:.0f} d"
