"""``epoch_N``, ``iteration_N`` and ``final_epoch``: checkpoints under the names of Towhee.

epoch_1/
    step-00000002/      the checkpoint, which shares its files with ``checkpoints/``
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
    """Saves a run so that it can go on, and what was asked for under its own name too.

    What is needed to go on is in ``checkpoints`` below ``output_dir``, until the end. Folders with
    names go to ``named``, None where only flags ask for them; ``put`` writes what is beside the
    checkpoint in them. A run that begins ``anew`` removes what another one needed to go on.
    """

    def __init__(
        self,
        output_dir: Path,
        named: Path | None,
        settings: dict[str, Any],
        put: Callable[[Path], None],
        *,
        anew: bool,
    ) -> None:
        super().__init__(None, keep=2, folder=output_dir / files.CHECKPOINTS)
        self._named, self._settings, self._put = named or output_dir, settings, put
        self._names_last, self._anew = named is not None, anew
        self._run: Run | None = None
        self._checkpoints: Checkpoints

    def opened(self, checkpoints: Checkpoints) -> None:
        """Remove what another run has left there, if this one is new."""
        self._checkpoints = checkpoints
        if self._anew:
            _remove(checkpoints)
        self._anew = False

    def before_train(self, run: Run) -> None:
        """Note the run, which says where a save belongs; give a name that a kill has left out."""
        super().before_train(run)
        self._run = run
        name = self._info_of(run.step).get("named")
        if name is not None:
            self._publish(run.step, name)

    def info(self) -> dict[str, Any]:
        """The settings of the run, and the name under which this save is published."""
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
        if not _alike(source, target):
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
        whole = run.epoch == run.current_epoch
        if self.wanted(run) and not whole:
            return f"iteration_{run.step}"
        last = run.done and self._names_last and not run.requests.signal
        return f"epoch_{run.epoch}" if whole and (self.wanted(run) or last) else None


def publish(target: Path, save: Callable[[Path], None], put: Callable[[Path], None]) -> None:
    """Make a folder whole beside its place, and then put it there; all processes call it."""
    partial = target.with_name(f".{target.name}.partial")
    if dist.is_main():
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
    dist.broadcast_from_rank0("")  # the others wait
    save(partial)
    put(partial)
    if dist.is_main():
        shutil.rmtree(target, ignore_errors=True)
        LocalStorage(target.parent).publish(partial.name, target.name)
    dist.broadcast_from_rank0("")


def write_state(path: Path, state: dict[str, Any], weights: dict[str, Any]) -> None:
    """The files that Towhee has, which ``torch.load(…, weights_only=True)`` reads."""
    torch.save(weights, path / "model.pth")
    torch.save(state, path / "state.pt")


def was_cut_short(output_dir: Path, settings: dict[str, Any], overwrite: bool) -> bool:
    """Whether an attempt with these settings was cut short, so that it goes on by itself.

    Another run is refused where it may not be replaced.
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
        _log.warning(f"a run in '{output_dir}' was cut short; {changed} differ, so it begins anew")
    return False


def forget(output_dir: Path) -> None:
    """Remove what a run needed to go on, now that it has ended."""
    folder = output_dir / files.CHECKPOINTS
    _remove(Checkpoints(folder))
    if dist.is_main():
        (folder / files.LOCK).unlink(missing_ok=True)
        with suppress(OSError):  # others may have put something there
            folder.rmdir()


def _remove(checkpoints: Checkpoints) -> None:
    dist.broadcast_from_rank0("")
    if dist.is_main():
        for path in checkpoints.list():
            shutil.rmtree(path)
    dist.broadcast_from_rank0("")


def found(path: str | Path) -> Path:
    """The checkpoint in a folder that was saved; a CheckpointError where there is none."""
    checkpoint = find_checkpoint(Path(path), None)
    assert checkpoint is not None
    return checkpoint


def _alike(source: Path, target: Path) -> bool:
    """Whether the checkpoint was given this name already."""
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
