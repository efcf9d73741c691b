"""Save and load Stoker checkpoints under the names of Colossal-AI."""

from pathlib import Path
from typing import Any

from stoker import CheckpointError, Hook, Run, hooks, load_weights
from stoker.checkpoint import Checkpoints
from stoker.checkpoint.format.manifest import Manifest
from stoker.core import dist
from stoker.dialects.colossalai.hooks import BaseHook
from stoker.storage import local_path
from stoker.storage.local import replace_link


class SaveCheckpointHook(BaseHook):
    """Save the complete state of the run every ``interval`` epochs (or updates) and at the end.

    A checkpoint is a folder such as ``step-00000500``. ``epoch5-tp0-pp0.pt`` is a link to the one
    after five epochs; all shards of a split model are in one checkpoint, so their links share it.
    The hook runs last, whatever its priority. ``model`` must be that of the engine.
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
        self.folder = local_path(checkpoint_dir, "checkpoint_dir")
        self.model, self.suffix = model, suffix
        self.every = f"{interval}{'st' if save_by_iter else 'ep'}"

    def natives(self, name: str, trainer: Any) -> list[Hook]:
        """Return the Stoker hook that saves."""
        core = trainer.engine.core
        if self.model not in (None, core.model, trainer.engine.given_model):
            raise ValueError("SaveCheckpointHook was given a different model than the engine")
        split = [(t, p) for t in range(core.layout.tensor) for p in range(core.layout.pipeline)]
        saving = _LinkedCheckpoint(self.every, keep=None, folder=self.folder)
        saving.name, saving.ends = name, [f"-tp{t}-pp{p}{self.suffix}.pt" for t, p in split]
        return [saving]


class _LinkedCheckpoint(hooks.Checkpoint):
    """Save checkpoints, and link the old names to those after complete epochs."""

    ends: list[str]
    _complete: int | None = None

    def opened(self, checkpoints: Checkpoints) -> None:
        """Create the links that a killed run could not create."""
        for path in checkpoints.list() if dist.is_main() else ():
            self.saved(path)

    def before_epoch(self, run: Run) -> None:
        self._complete = None

    def after_epoch(self, run: Run) -> None:
        super().after_epoch(run)
        self._complete = run.epoch if run.epoch == run.current_epoch else None

    def info(self) -> dict[str, Any]:
        return {"complete_epoch": self._complete}

    def saved(self, path: Path) -> None:
        """Link the names of a complete epoch to its checkpoint."""
        epoch = Manifest.read(path).info.get("complete_epoch")
        for end in self.ends if epoch is not None else ():
            replace_link(path.parent / f"epoch{epoch}{end}", path)


class LoadCheckpointHook(BaseHook):
    """Resume from a checkpoint, by default the newest, or start from its weights (``finetune``).

    With ``finetune`` and ``strict``, weights that do not match are an error instead of a warning.
    The hook runs first, whatever its priority.
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
        self.folder = local_path(checkpoint_dir, "checkpoint_dir")
        self.epoch, self.suffix = epoch, suffix
        self.finetune, self.strict = finetune, strict

    def find(self) -> Path:
        """Return the checkpoint, or raise FileNotFoundError."""
        if self.epoch == -1 and (newest := Checkpoints(self.folder).newest()) is not None:
            return newest
        if self.epoch == -1:
            raise FileNotFoundError(f"there is no checkpoint in '{self.folder}'")
        path = self.folder / f"epoch{self.epoch}-tp0-pp0{self.suffix}.pt"
        if path.is_file():
            raise CheckpointError(
                f"'{path}' was written by Colossal-AI itself: convert it to weights that can be "
                "loaded with 'stoker ckpt import'"
            )
        if not path.is_dir():
            raise FileNotFoundError(f"there is no checkpoint '{path}'")
        return path.resolve()

    def resume(self, trainer: Any, saves_to: Path | None) -> str | Path:
        """Return the ``resume`` argument of Stoker's trainer."""
        if not self.finetune:
            return self.find()
        faults = load_weights(trainer.engine.model, self.find())
        if self.strict and any(faults.values()):
            raise CheckpointError(f"the weights of '{self.find()}' do not match: {faults}")
        if saves_to is not None and saves_to.resolve() == self.folder.resolve():
            return "never"  # raises if the folder has checkpoints of another run
        return "auto"
