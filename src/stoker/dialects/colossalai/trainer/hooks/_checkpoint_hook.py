"""Saving and loading: Stoker's checkpoints, under the names of old."""

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from stoker import CheckpointError, Hook, Run, dist, hooks, load_weights
from stoker.checkpoint import Checkpoints
from stoker.dialects.colossalai.trainer.hooks._base_hook import BaseHook


class SaveCheckpointHook(BaseHook):
    """Saves everything the run is, each ``interval`` epochs and at the end.

    A checkpoint is a folder, ``step-00000500``; ``epoch5-tp0-pp0.pt`` points at the one after
    five epochs, and so for every part of a split model, since all are in one.

    Args:
        interval: in epochs.
        checkpoint_dir: where.
        model: the engine's; another one is refused.
        save_by_iter: count the interval in updates.
        suffix: what the names of old end with.
        priority: see `BaseHook`; saving comes last, whatever it is.
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
        self.folder, self.model, self.suffix = Path(checkpoint_dir), model, suffix
        self.every = f"{interval}{'st' if save_by_iter else 'ep'}"

    def natives(self, name: str, trainer: Any) -> list[Hook]:
        """Stoker's own hook."""
        core = trainer.engine.core
        if self.model not in (None, core.model):
            raise ValueError("SaveCheckpointHook has another model than the engine")
        layout = core.layout
        ends = [
            f"-tp{t}-pp{p}{self.suffix}.pt"
            for t in range(layout.tensor)
            for p in range(layout.pipeline)
        ]
        saving = _Saving(self.every, folder=self.folder, keep=None)
        saving.name, saving.ends = name, ends
        return [saving]


class _Saving(hooks.Checkpoint):
    """Checkpoints, and names of old that point at those after whole epochs."""

    ends: list[str]

    def __init__(self, every: str, *, folder: Path, keep: int | None) -> None:
        super().__init__(every, folder=folder, keep=keep)
        self._place = folder
        self._epochs: dict[str, int] = {}  # by the step, as a text

    def after_epoch(self, run: Run) -> None:
        """Note the step at which an epoch was whole."""
        super().after_epoch(run)
        if (self.due or run.done) and run.epoch == run.epoch_in_hand:
            self._epochs[str(run.step)] = run.epoch

    def save(
        self, step: int, take: Callable[[], tuple[Any, Any, dict[str, Any]]], *, wait: bool
    ) -> None:
        """Save; what was saved before is on the disk by then, and gets its name."""
        super().save(step, take, wait=wait)
        self._point()

    def after_run(self, run: Run) -> None:
        """The last one is on the disk."""
        super().after_run(run)
        self._point()

    def state_dict(self) -> dict[str, Any]:
        """Which steps were the ends of epochs."""
        return {**super().state_dict(), "epochs": dict(self._epochs)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take it back; a name that a killed run could not give is given now."""
        super().load_state_dict(state)
        self._epochs = dict(state["epochs"])
        self._point()

    def _point(self) -> None:
        if not dist.is_main():
            return
        for step, epoch in self._epochs.items():
            target = f"step-{int(step):08}"
            for end in self.ends if (self._place / target).is_dir() else ():
                name = self._place / f"epoch{epoch}{end}"
                if not name.is_symlink() or os.readlink(name) != target:
                    with suppress(FileNotFoundError):
                        name.unlink()
                    name.symlink_to(target)


class LoadCheckpointHook(BaseHook):
    """Goes on from a checkpoint, or begins with its weights.

    Args:
        checkpoint_dir: where it is.
        epoch: after how many completed epochs; -1 means the newest.
        finetune: take the weights alone, and begin at epoch 0.
        strict: with ``finetune``: refuse weights that do not fit, instead of telling them.
        suffix: what its name ends with.
        priority: see `BaseHook`; loading comes first, whatever it is.
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
        self.folder, self.epoch, self.suffix = Path(checkpoint_dir), epoch, suffix
        self.finetune, self.strict = finetune, strict

    def find(self) -> Path:
        """The checkpoint.

        Raises:
            FileNotFoundError: there is none.
        """
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
