"""The checkpoints of a run: their sizes, and whether they are whole."""

from typing import Any

from stoker.board.safe_files import Folder
from stoker.checkpoint.format.manifest import Manifest
from stoker.checkpoint.format.names import MANIFEST, step_in_name
from stoker.checkpoint.read.verify import verify_checkpoint
from stoker.core.errors import CheckpointError

_BROKEN = (CheckpointError, ValueError, KeyError, TypeError, AttributeError, RecursionError)
MOST = 500
"""How many checkpoints are shown, the newest."""


def checkpoints_of(run: Folder) -> list[dict[str, Any]]:
    """The checkpoints of a run, newest first, judged by their manifests and sizes."""
    folder = run.below("checkpoints")
    names = [name for name in folder.folders() if step_in_name(name) is not None]
    names = sorted(names, key=lambda name: step_in_name(name) or 0, reverse=True)[:MOST]
    return [_at_a_glance(folder.below(name)) for name in names]


def verified(run: Folder, name: str) -> dict[str, Any]:
    """One checkpoint, judged by every byte of it."""
    if step_in_name(name) is None:
        raise FileNotFoundError(name)
    folder = run.below("checkpoints", name)
    with folder.opened():
        found = _at_a_glance(folder)
    if found["state"] == "sizes fit":
        faults = verify_checkpoint(folder.path)
        found |= {"state": "broken" if faults else "whole", "faults": faults[:20]}
    return found


def _at_a_glance(folder: Folder) -> dict[str, Any]:
    sizes = {name: found.st_size for name in folder.files() if (found := folder.stat(name))}
    when = folder.stat(MANIFEST)
    row: dict[str, Any] = {
        "name": folder.parts[-1],
        "step": step_in_name(folder.parts[-1]),
        "size": sum(sizes.values()),
        "time": when.st_mtime if when is not None else None,
        "metrics": {},
    }
    try:
        if when is None or when.st_size > 1 << 26:
            raise CheckpointError(f"it has no {MANIFEST}")
        manifest = Manifest.read(folder.path)
        faults = [
            f"'{name}' has {sizes[name]} bytes, expected {record.size}"
            if name in sizes
            else f"'{name}' is missing"
            for name, record in manifest.files.items()
            if sizes.get(name) != record.size
        ]
        row["metrics"] = _numbers(manifest.info.get("metrics"))
    except _BROKEN as error:
        faults = [str(error).replace(str(folder.path), folder.parts[-1])]
    return row | {"state": "broken" if faults else "sizes fit", "faults": faults[:20]}


def _numbers(metrics: Any) -> dict[str, float]:
    found = metrics.items() if isinstance(metrics, dict) else ()
    return {str(k): float(v) for k, v in found if isinstance(v, int | float)}
