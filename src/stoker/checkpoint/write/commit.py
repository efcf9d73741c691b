"""How a checkpoint comes to exist, and how it goes.

    .step-00000500.partial-71/      files are written and synced one by one, the manifest last
    step-00000500/                  it exists from the rename on, and is then read back
    .aside-step-00000500/           an older one of the same step, until the new one is read back
    .trash-step-00000300/           one that goes: renamed first, so that no half of it looks whole

Whatever moment the process is killed at, the names that do not begin with a dot are whole.
"""

import os
import shutil
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from stoker.checkpoint.format.manifest import NAME, Manifest, faults_of
from stoker.checkpoint.format.names import checkpoint_name, step_in_name
from stoker.core.errors import CheckpointError
from stoker.storage import crash_points as points
from stoker.storage.local import Record, sync_folder, write_file


def step_of(path: Path) -> int | None:
    """The step of a whole checkpoint; None for anything else."""
    return step_in_name(path.name) if (path / NAME).is_file() else None


def write_files(
    partial: Path, files: Mapping[str, Iterable[memoryview | bytes]]
) -> dict[str, Record]:
    """Write the files of one process into the partial folder, which may exist."""
    partial.mkdir(exist_ok=True)
    points.at("partial-made")
    return {name: write_file(partial / name, blocks) for name, blocks in files.items()}


def publish(partial: Path, manifest: Manifest) -> Path:
    """Make the partial folder a checkpoint; if it does not read back, nothing has changed."""
    points.at("before-manifest")
    write_file(partial / NAME, [manifest.text().encode()])
    points.at("manifest-written")
    sync_folder(partial)
    final = partial.with_name(checkpoint_name(manifest.step))
    aside = final.with_name(f".aside-{final.name}")
    points.at("before-rename")
    if final.exists():
        if aside.exists():
            remove(aside)
        os.rename(final, aside)
        points.at("set-aside")
    os.rename(partial, final)
    points.at("renamed")
    sync_folder(final.parent)
    points.at("published")
    faults = faults_of(final)
    if faults:
        remove(final)
        _take_back(aside)
        raise CheckpointError(f"'{final}' did not read back as written: {'; '.join(faults)}")
    points.at("verified")
    if aside.exists():
        with suppress(OSError):  # it goes at the next start; this save is whole
            remove(aside)
    return final


def remove(path: Path) -> None:
    """Take a checkpoint away: it is gone from the moment of the rename."""
    points.at("before-removal")
    trash = path.with_name(f".trash-{path.name.lstrip('.')}")
    shutil.rmtree(trash, ignore_errors=True)
    os.rename(path, trash)
    points.at("trashed")
    shutil.rmtree(trash)
    points.at("removed")


def clean(folder: Path) -> None:
    """Put in order what a killed run left; only for the one who owns the folder."""
    for path in sorted(folder.iterdir()):
        if path.name.startswith(".aside-"):
            _settle(path)
    for path in sorted(folder.iterdir()):
        partial = path.name.startswith(".step-") and ".partial-" in path.name
        if partial or path.name.startswith(".trash-"):
            shutil.rmtree(path, ignore_errors=True)


def _settle(aside: Path) -> None:
    """Keep the older one of a step only if the newer one did not come to be whole."""
    final = _final_of(aside)
    if final.exists() and not faults_of(final):
        remove(aside)
        return
    if final.exists():
        remove(final)
    _take_back(aside)


def _take_back(aside: Path) -> None:
    if aside.exists():
        os.rename(aside, _final_of(aside))
        sync_folder(aside.parent)


def _final_of(aside: Path) -> Path:
    return aside.with_name(aside.name.removeprefix(".aside-"))
