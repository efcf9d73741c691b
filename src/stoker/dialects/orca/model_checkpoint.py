"""`ModelCheckpoint`: checkpoints under custom names."""

import os
from pathlib import Path
from string import Formatter

from stoker import Every, Hook, Run
from stoker.checkpoint import Checkpoints
from stoker.checkpoint.format.manifest import Manifest
from stoker.checkpoint.format.names import MANIFEST
from stoker.core import dist
from stoker.core.errors import CheckpointError, did_you_mean
from stoker.dialects.orca.callbacks import Callback
from stoker.hooks import Priority
from stoker.rundir import files
from stoker.storage import local_path
from stoker.storage.local import replace_link

_PLACES = ("epoch", "iter")


class ModelCheckpoint(Callback):
    """Save checkpoints under names such as ``epoch=3.ckpt`` and ``last.ckpt``.

    The names are links to files of Stoker checkpoints, which are in ``checkpoints/`` next to them
    or in the estimator's ``model_dir``; ``load_checkpoint`` takes them. The same script started
    again resumes from the newest.

    ``filepath`` is a folder and a name, such as ``"models/net-{epoch:02d}-{iter}"``. ``interval``
    counts epochs or updates; -1 means every epoch, or for updates only the end. With
    ``save_weights_only`` the names link to the weights only.
    """

    def __init__(
        self,
        filepath: str | Path = "",
        save_weights_only: bool = False,
        by_epoch: bool = True,
        interval: int = -1,
    ) -> None:
        folder, name = os.path.split(os.fspath(filepath))
        self.folder, self.by_epoch = local_path(folder), by_epoch
        self.template = name.removesuffix(".ckpt") or ("{epoch}" if by_epoch else "{iter}")
        for _, place, _, _ in Formatter().parse(self.template):
            if place is not None and place not in _PLACES:
                raise ValueError(
                    f"filepath has {{{place}}}{did_you_mean(place, _PLACES)} "
                    "(it takes {epoch} and {iter})"
                )
        self.weights_only = save_weights_only
        unit = "ep" if by_epoch else "st"
        never = interval == -1 and not by_epoch
        count = 1 if interval == -1 else interval
        self.every = None if never else Every.of(f"{count}{unit}")

    def name(self, epoch: int, step: int) -> str:
        """Return the name of a checkpoint."""
        template = self.template
        for place in _PLACES:
            template = template.replace(f"{{{place}", f"{place}={{{place}")
        return template.format(epoch=epoch, iter=step) + ".ckpt"

    @classmethod
    def get_latest_checkpoint(cls, dirname: str | Path) -> str:
        """Return the file of the newest complete checkpoint, also of a run that failed."""
        folder = local_path(dirname)
        links = [folder / "last.ckpt", *sorted(folder.glob("*.ckpt"))]
        named = {checkpoint_of(path): path for path in reversed(links) if path.exists()}
        saved = [p for base in (folder, folder / files.CHECKPOINTS) for p in _complete(base)]
        found = [path for path in (*named, *saved) if path is not None]
        if not found:
            raise NoCheckpointError(f"there is no checkpoint in '{dirname}'")
        newest = max(found, key=lambda path: (Manifest.read(path).step, path in named))
        return str(named.get(newest, newest / MANIFEST))

    def names(self, checkpoints: Path) -> Hook:
        """Return the hook that names the checkpoints of that folder."""
        return Names(self, checkpoints)


class NoCheckpointError(CheckpointError, RuntimeError):
    """There is no checkpoint."""


def checkpoint_of(path: Path) -> Path | None:
    """Return the complete checkpoint that a name of a `ModelCheckpoint` stands for, or None."""
    file = path.resolve()
    is_part = file.name in (MANIFEST, files.WEIGHTS) and (file.parent / MANIFEST).is_file()
    return file.parent if is_part else None


def _complete(folder: Path) -> list[Path]:
    return Checkpoints(folder).list() if folder.is_dir() else []


class Names(Hook):
    """Link the names of a `ModelCheckpoint` to the checkpoints."""

    priority = Priority.SAVE + 10
    same_on_all_ranks = True
    writes = True

    def __init__(self, callback: ModelCheckpoint, checkpoints: Path) -> None:
        self.name = "ModelCheckpoint.names"
        self._callback, self._checkpoints = callback, checkpoints
        self._every = callback.every

    def before_run(self, run: Run) -> None:
        """Reject a folder with the checkpoints of another run, on all ranks."""
        inside = self._checkpoints.resolve()
        found = self._callback.folder.glob("*.ckpt")
        others = [path.name for path in found if not path.resolve().is_relative_to(inside)]
        others = dist.all_gather_object(sorted(others))[0]
        if others and run.task == "fit":
            raise CheckpointError(
                f"'{self._callback.folder}' holds {others[0]}, which is not of this run: choose "
                "another folder"
            )

    def before_epoch(self, run: Run) -> None:
        """Name the checkpoints saved since the last call."""
        self._link()

    def after_run(self, run: Run) -> None:
        """Name the remaining checkpoints, and the last."""
        self._link(last=True)

    def _link(self, *, last: bool = False) -> None:
        if not dist.is_main():
            return
        saved = Checkpoints(self._checkpoints).list()
        for path in saved:
            manifest = Manifest.read(path)
            step, epoch = manifest.step, int(manifest.info["epoch"])
            if self._every and (self._every.at_step(step) or self._every.at_epoch(epoch)):
                self._point(self._callback.name(epoch, step), path)
        if last and saved:
            self._point("last.ckpt", saved[-1])

    def _point(self, name: str, path: Path) -> None:
        target = path / (files.WEIGHTS if self._callback.weights_only else MANIFEST)
        replace_link(self._callback.folder / name, target)
