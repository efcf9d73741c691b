"""Find the checkpoints that a path on the command line refers to."""

import sys
from pathlib import Path

from stoker.checkpoint import Checkpoints
from stoker.checkpoint.format.names import MANIFEST, step_in_name
from stoker.config.yaml_text import ConfigError
from stoker.core.errors import did_you_mean_path
from stoker.rundir import files

_EXPECTED = "expected a run folder, its checkpoints folder, or one checkpoint"


def is_checkpoint(path: Path) -> bool:
    """Return whether a folder is a checkpoint, complete or not."""
    return path.is_dir() and ((path / MANIFEST).exists() or step_in_name(path.name) is not None)


def folder_of(path: Path) -> Path:
    """Return the checkpoints folder of a run folder, or the folder itself."""
    if not path.exists():
        raise ConfigError(f"there is no '{path}'{did_you_mean_path(path)}")
    if not path.is_dir():
        raise ConfigError(f"'{path}' is a file, {_EXPECTED}")
    inside = path / files.CHECKPOINTS
    return inside if inside.is_dir() else path


def find_all(path: Path) -> list[Path]:
    """Return all checkpoints at a path, oldest first, including those without a manifest."""
    if is_checkpoint(path):
        return [path]
    folder = folder_of(path)
    found = [
        one for one in folder.iterdir() if is_checkpoint(one) and step_in_name(one.name) is not None
    ]
    if not found:
        raise ConfigError(f"there is no checkpoint in '{folder}', {_EXPECTED}")
    return sorted(found, key=lambda one: step_in_name(one.name) or 0)


def find_one(path: Path) -> Path:
    """Return the checkpoint at a path, or the newest valid one of a run, which is printed."""
    if is_checkpoint(path):
        return path
    folder = folder_of(path)
    newest = Checkpoints(folder).newest()
    if newest is None:
        raise ConfigError(f"there is no valid checkpoint in '{folder}', {_EXPECTED}")
    print(f"checkpoint {newest}", file=sys.stderr)
    return newest


def size_of(path: Path) -> int:
    """Return the size of a checkpoint in bytes."""
    return sum(file.stat().st_size for file in path.iterdir() if file.is_file())


def format_age(seconds: float) -> str:
    """Format an age, such as "5 min"."""
    for limit, length, unit in ((60, 1, "s"), (3600, 60, "min"), (86400, 3600, "h")):
        if seconds < limit:
            return f"{max(seconds, 0) / length:.0f} {unit}"
    return f"{seconds / 86400:.0f} d"
