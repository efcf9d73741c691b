"""Find the checkpoints that a path on the command line refers to."""

import sys
from pathlib import Path
from typing import Any

from stoker.checkpoint import Checkpoints
from stoker.checkpoint.format.names import MANIFEST, open_checkpoint, step_in_name
from stoker.core.errors import ConfigError, did_you_mean_path
from stoker.rundir import files
from stoker.storage import display
from stoker.storage.object_store import ObjectStorage

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
    print(f"checkpoint {display(newest)}", file=sys.stderr)
    return newest


def size_of(path: Path) -> int:
    """Return the size of a checkpoint in bytes."""
    if isinstance(stored := open_checkpoint(path), ObjectStorage):
        return sum(stored.sizes().values())
    return sum(file.stat().st_size for file in path.iterdir() if file.is_file())


def saved_at(path: Path) -> float:
    """Return when a checkpoint was saved, in seconds since 1970; a store sets it on the folder."""
    return (path / MANIFEST if (path / MANIFEST).exists() else path).stat().st_mtime


def add_contents(path: Path, known: dict[Any, int]) -> int:
    """Add the contents of a checkpoint to those of others; return the bytes that are new."""
    found: dict[Any, int]
    if isinstance(stored := open_checkpoint(path), ObjectStorage):
        found = {**stored.contents()}
    else:
        stats = [file.stat() for file in path.iterdir() if file.is_file()]
        found = {(one.st_dev, one.st_ino): one.st_size for one in stats}
    new = {key: size for key, size in found.items() if key not in known}
    known |= new
    return sum(new.values())


def format_age(seconds: float) -> str:
    """Format an age, such as "5 min"."""
    for limit, length, unit in ((60, 1, "s"), (3600, 60, "min"), (86400, 3600, "h")):
        if seconds < limit:
            return f"{max(seconds, 0) / length:.0f} {unit}"
    return f"{seconds / 86400:.0f} d"
