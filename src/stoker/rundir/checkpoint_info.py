"""`CheckpointInfo`: the checkpoints of a run, with their sizes and whether they are valid."""

from dataclasses import dataclass, field, replace
from typing import Any, Literal

from stoker.checkpoint.format.manifest import Manifest
from stoker.checkpoint.format.names import MANIFEST, step_in_name
from stoker.checkpoint.read.verify import verify_checkpoint
from stoker.core.errors import CheckpointError
from stoker.rundir import files
from stoker.rundir.safe_folder import SafeFolder

MOST_SHOWN = 500
"""How many checkpoints are listed, the newest."""

_LARGEST_MANIFEST = 1 << 26
_MOST_FAULTS = 20
_BROKEN = (
    CheckpointError,
    OSError,
    ValueError,
    KeyError,
    TypeError,
    AttributeError,
    RecursionError,
)


@dataclass(frozen=True)
class CheckpointInfo:
    """What is known of a checkpoint without loading it.

    Args:
        name: its folder, such as ``step-00000500``.
        step: the step it was saved at.
        size: bytes of all its files.
        time: when it was completed, in seconds since 1970; None if it was not.
        metrics: the results saved with it.
        faults: what is wrong with it.
        verified: whether every byte was checked, not only the sizes.
    """

    name: str
    step: int
    size: int
    time: float | None
    metrics: dict[str, float] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)
    verified: bool = False

    @property
    def state(self) -> Literal["verified", "sizes match", "broken"]:
        """Whether it is valid, as far as it was checked."""
        if self.faults:
            return "broken"
        return "verified" if self.verified else "sizes match"


def list_checkpoints(run: SafeFolder) -> list[CheckpointInfo]:
    """Return the checkpoints of a run, newest first, checked by their manifests and file sizes."""
    folder = run.below(files.CHECKPOINTS)
    steps = {name: step_in_name(name) for name in folder.folders()}
    found = sorted(((s, name) for name, s in steps.items() if s is not None), reverse=True)
    return [_check_sizes(folder.below(name), step) for step, name in found[:MOST_SHOWN]]


def check_every_byte(run: SafeFolder, name: str) -> CheckpointInfo:
    """Return a checkpoint of a run after reading and checking every byte of it.

    Raises:
        FileNotFoundError: there is no such checkpoint.
    """
    step = step_in_name(name)
    if step is None:
        raise FileNotFoundError(name)
    folder = run.below(files.CHECKPOINTS, name)
    with folder.opened():
        info = _check_sizes(folder, step)
    if info.faults:
        return info
    return replace(info, verified=True, faults=verify_checkpoint(folder.path)[:_MOST_FAULTS])


def _check_sizes(folder: SafeFolder, step: int) -> CheckpointInfo:
    name = folder.parts[-1]
    sizes = {file: found.st_size for file in folder.files() if (found := folder.stat(file))}
    manifest_file = folder.stat(MANIFEST)
    metrics: dict[str, float] = {}
    try:
        if manifest_file is None or manifest_file.st_size > _LARGEST_MANIFEST:
            raise CheckpointError(f"it has no {MANIFEST}")
        manifest = Manifest.read(folder.path)
        faults = [
            f"'{file}' has {sizes[file]} bytes, expected {record.size}"
            if file in sizes
            else f"'{file}' is missing"
            for file, record in manifest.files.items()
            if sizes.get(file) != record.size
        ]
        metrics = _numbers(manifest.info.get("metrics"))
    except _BROKEN as error:
        faults = [str(error).replace(str(folder.path), name)]
    time = manifest_file.st_mtime if manifest_file is not None else None
    return CheckpointInfo(name, step, sum(sizes.values()), time, metrics, faults[:_MOST_FAULTS])


def _numbers(metrics: Any) -> dict[str, float]:
    found = metrics.items() if isinstance(metrics, dict) else ()
    return {str(k): float(v) for k, v in found if isinstance(v, int | float)}
