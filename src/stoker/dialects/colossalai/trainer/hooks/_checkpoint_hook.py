"""Saving and loading: Stoker's checkpoints, under the names of old."""

from pathlib import Path
from typing import Any

from stoker import CheckpointError, Hook, Run, hooks, load_weights
from stoker.checkpoint import Checkpoints
from stoker.checkpoint.format.manifest import Manifest
from stoker.core import dist
from stoker.dialects.colossalai.trainer.hooks._base_hook import BaseHook
from stoker.storage import local_path
from stoker.storage.local import replace_link


class SaveCheckpointHook(BaseHook):
    """Saves everything the run is, each ``interval`` epochs (or updates) and at the end.

    A checkpoint is a folder, ``step-00000500``; ``epoch5-tp0-pp0.pt`` points at the one after
    five epochs, and so for every part of a split model, since all are in one. Saving comes last,
    whatever the priority. A ``model`` other than the engine's is refused.
    """

    def __init__(
        self,
        interval: int = 1,
        checkpoint_dir: str | Path | None = None,
        model: Any = None,
        save_by_iter: bool = False,
        suffix: str = "",
        priority: int = 10,
    ) -> None:
        super().__init__(priority)
        if checkpoint_dir is None:
            raise ValueError("SaveCheckpointHook needs a checkpoint_dir to save into")
        self.folder, self.model, self.suffix = (
            local_path(checkpoint_dir, "checkpoint_dir"),
            model,
            suffix,
        )
        self.every = f"{interval}{'st' if save_by_iter else 'ep'}"

    def natives(self, name: str, trainer: Any) -> list[Hook]:
        """Stoker's own hook."""
        core = trainer.engine.core
        if self.model not in (None, core.model):
            raise ValueError("SaveCheckpointHook has another model than the engine")
        split = [(t, p) for t in range(core.layout.tensor) for p in range(core.layout.pipeline)]
        saving = _Saving(self.every, keep=None, folder=self.folder)
        saving.name, saving.ends = name, [f"-tp{t}-pp{p}{self.suffix}.pt" for t, p in split]
        return [saving]


class _Saving(hooks.Checkpoint):
    """Checkpoints, and names of old that point at those after whole epochs."""

    ends: list[str]
    _whole: int | None = None

    def opened(self, checkpoints: Checkpoints) -> None:
        """Create the names that a killed run could not create."""
        for path in checkpoints.list() if dist.is_main() else ():
            self.saved(path)

    def before_epoch(self, run: Run) -> None:
        """What is saved from here on is no end of an epoch."""
        self._whole = None

    def after_epoch(self, run: Run) -> None:
        """What is saved here is one, if the epoch was whole."""
        super().after_epoch(run)
        self._whole = run.epoch if run.epoch == run.current_epoch else None

    def info(self) -> dict[str, Any]:
        """Which epoch a checkpoint is the end of."""
        return {"whole_epoch": self._whole}

    def saved(self, path: Path) -> None:
        """Give the end of an epoch its names."""
        epoch = Manifest.read(path).info.get("whole_epoch")
        for end in self.ends if epoch is not None else ():
            replace_link(path.parent / f"epoch{epoch}{end}", path)


class LoadCheckpointHook(BaseHook):
    """Goes on from a checkpoint, by default the newest, or begins with its weights (``finetune``).

    With ``finetune`` and ``strict`` weights that do not fit are refused, instead of told. Loading
    comes first, whatever the priority.
    """

    def __init__(
        self,
        checkpoint_dir: str | Path | None = None,
        epoch: int = -1,
        finetune: bool = False,
        strict: bool = False,
        suffix: str = "",
        priority: int = 0,
    ) -> None:
        super().__init__(priority)
        if checkpoint_dir is None:
            raise ValueError("LoadCheckpointHook needs a checkpoint_dir to load from")
        self.folder, self.epoch, self.suffix = (
            local_path(checkpoint_dir, "checkpoint_dir"),
            epoch,
            suffix,
        )
        self.finetune, self.strict = finetune, strict

    def find(self) -> Path:
        """The checkpoint; a FileNotFoundError if there is none."""
        if self.epoch == -1:
            newest = Checkpoints(self.folder).newest()
            if newest is None:
                raise FileNotFoundError(f"there is no checkpoint in '{self.folder}'")
            return newest
        path = self.folder / f"epoch{self.epoch}-tp0-pp0{self.suffix}.pt"
        if path.is_file():
            raise CheckpointError(
                f"'{path}' was written by Colossal-AI itself: 'stoker ckpt import' makes weights "
                "of it that can be loaded"
            )
        if not path.is_dir():
            raise FileNotFoundError(f"there is no checkpoint '{path}'")
        return path.resolve()

    def resume(self, trainer: Any, saves_to: Path | None) -> str | Path:
        """Where the fit goes on from, in the words of Stoker's trainer."""
        if not self.finetune:
            return self.find()
        faults = load_weights(trainer.engine.model, self.find())
        if self.strict and any(faults.values()):
            raise CheckpointError(f"the weights of '{self.find()}' do not fit: {faults}")
        if saves_to is not None and saves_to.resolve() == self.folder.resolve():
            return "never"  # which says that another run's checkpoints are there
        return "auto"
