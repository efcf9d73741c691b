"""Checkpoints under the names of Towhee: ``epoch_N``, ``iteration_N`` and ``final_epoch``.

epoch_1/
    step-00000002/      the checkpoint, hard-linked to ``checkpoints/``
    model.pth           its weights, as torch.save writes a state dict
    state.pt            epoch, optimizer, scheduler and last results
    README.md           the model card
"""

import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from stoker import Run, hooks
from stoker.checkpoint import Checkpoints
from stoker.checkpoint.format.manifest import Manifest
from stoker.checkpoint.format.names import MANIFEST, checkpoint_name
from stoker.core import dist
from stoker.core.log import get_logger
from stoker.resume.lookup import find_checkpoint
from stoker.rundir import files
from stoker.storage import LocalStorage

_log = get_logger()


class Folders(hooks.Checkpoint):
    """Save a run so that it can be resumed, and publish requested saves under their names.

    Until the run ends, its checkpoints are in ``output_dir/checkpoints``.

    Args:
        output_dir: The folder of the training.
        named: The folder of named saves; None if only flags request them.
        settings: The training config, to recognize an interrupted run.
        put: Writes the other files of a named save.
        fresh: Remove the checkpoints of an interrupted run first.
    """

    def __init__(
        self,
        output_dir: Path,
        named: Path | None,
        settings: dict[str, Any],
        put: Callable[[Path], None],
        *,
        fresh: bool,
    ) -> None:
        super().__init__(None, keep=2, folder=output_dir / files.CHECKPOINTS)
        self._named, self._settings, self._put = named or output_dir, settings, put
        self._names_last, self._fresh = named is not None, fresh
        self._run: Run | None = None
        self._checkpoints: Checkpoints

    def opened(self, checkpoints: Checkpoints) -> None:
        """Remove the checkpoints of an interrupted run if this one starts from scratch."""
        self._checkpoints = checkpoints
        if self._fresh:
            _remove(checkpoints)
        self._fresh = False

    def before_train(self, run: Run) -> None:
        """Publish a named save that a kill prevented."""
        super().before_train(run)
        self._run = run
        name = self._info_of(run.step).get("named")
        if name is not None:
            self._publish(run.step, name)

    def info(self) -> dict[str, Any]:
        """Return the settings of the run and the name of this save."""
        return {"training_config": self._settings, "named": self._name()}

    def must_wait(self, run: Run) -> bool:
        """Wait for a save that is published under a name."""
        return self._name() is not None

    def after_save(self, path: Path) -> None:
        """Publish the checkpoint under its name, if it has one."""
        name = self._name()
        if name is not None and self._run is not None:
            self._publish(self._run.step, name)

    def _publish(self, step: int, name: str) -> None:
        source, target = self._path(step), self._named / name
        if not _is_published(source, target):
            publish(target, lambda to: _linked(source, to / source.name), self._put)

    def _info_of(self, step: int) -> dict[str, Any]:
        path = self._path(step)
        return Manifest.read(path).info if (path / MANIFEST).is_file() else {}

    def _path(self, step: int) -> Path:
        return self._checkpoints.folder / checkpoint_name(step)

    def _name(self) -> str | None:
        run = self._run
        if run is None or not run.step:
            return None
        complete = run.epoch == run.current_epoch
        if self.wanted(run) and not complete:
            return f"iteration_{run.step}"
        last = run.done and self._names_last and not run.requests.signal
        return f"epoch_{run.epoch}" if complete and (self.wanted(run) or last) else None


def publish(target: Path, save: Callable[[Path], None], put: Callable[[Path], None]) -> None:
    """Build a folder and publish it atomically; all processes must call it."""
    partial = target.with_name(f".{target.name}.partial")
    if dist.is_main():
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
    dist.broadcast_from_rank0("")  # a barrier
    save(partial)
    put(partial)
    if dist.is_main():
        shutil.rmtree(target, ignore_errors=True)
        LocalStorage(target.parent).publish(partial.name, target.name)
    dist.broadcast_from_rank0("")


def write_state(path: Path, state: dict[str, Any], weights: dict[str, Any]) -> None:
    """Write the files of Towhee, which ``torch.load(…, weights_only=True)`` reads."""
    torch.save(weights, path / "model.pth")
    torch.save(state, path / "state.pt")


def was_interrupted(output_dir: Path, settings: dict[str, Any], overwrite: bool) -> bool:
    """Return whether a run with these settings was interrupted and can be resumed.

    Raises:
        FileExistsError: The folder has another run, and ``overwrite`` is False.
    """
    checkpoints = Checkpoints(output_dir / files.CHECKPOINTS)
    newest = checkpoints.newest()
    then = Manifest.read(newest).info.get("training_config") if newest is not None else None
    if then == settings:
        return True
    others = newest is not None or (output_dir / "final_epoch").exists()
    if others and not overwrite:
        raise FileExistsError(
            f"output_dir '{output_dir}' holds another run, and overwrite_output_dir is False"
        )
    if then is not None:
        changed = ", ".join(name for name in settings if then.get(name) != settings[name])
        _log.warning(
            f"a run in '{output_dir}' was interrupted, but {changed} differ: starting from scratch"
        )
    return False


def forget(output_dir: Path) -> None:
    """Remove the checkpoints of a finished run."""
    folder = output_dir / files.CHECKPOINTS
    _remove(Checkpoints(folder))
    if dist.is_main():
        shutil.rmtree(folder / files.LOCK, ignore_errors=True)
        with suppress(OSError):  # the folder may have other files
            (folder / files.IDENTITY).unlink(missing_ok=True)
            folder.rmdir()


def _remove(checkpoints: Checkpoints) -> None:
    dist.broadcast_from_rank0("")
    if dist.is_main():
        for path in checkpoints.list():
            shutil.rmtree(path)
    dist.broadcast_from_rank0("")


def found(path: str | Path) -> Path:
    """Return the checkpoint in a saved folder, or raise CheckpointError."""
    checkpoint = find_checkpoint(Path(path), None)
    assert checkpoint is not None
    return checkpoint


def _is_published(source: Path, target: Path) -> bool:
    """Return whether the checkpoint is already published under this name."""
    one, other = (folder / MANIFEST for folder in (source, target / source.name))
    return other.exists() and one.read_bytes() == other.read_bytes()


def _linked(source: Path, target: Path) -> None:
    if dist.is_main():
        shutil.copytree(source, target, copy_function=_link)


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:  # a file system without links
        shutil.copy2(source, target)
