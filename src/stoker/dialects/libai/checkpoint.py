"""`Checkpointer`: save and load by name, in Stoker's format."""

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import nn

from stoker import load_weights
from stoker.checkpoint import Checkpoints
from stoker.core import dist
from stoker.resume.lookup import find_checkpoint
from stoker.storage import write_atomic

_log = logging.getLogger("libai.checkpoint")


class Checkpointer:
    """Save a model and other stateful objects under a name in a folder."""

    def __init__(
        self,
        model: nn.Module,
        save_dir: str | Path = "",
        *,
        save_to_disk: bool = True,
        **checkpointables: Any,
    ) -> None:
        self.model, self.save_dir = model, Path(save_dir)
        self.save_to_disk = save_to_disk and str(save_dir) != ""
        self.checkpointables = checkpointables

    def save(self, name: str, **kwargs: Any) -> None:
        """Save under this name with additional plain values, and mark it as the last checkpoint."""
        self.write(name, **kwargs)
        self.tag_last_checkpoint(name)

    def write(self, name: str, **kwargs: Any) -> None:
        """Save under this name without marking it as the last checkpoint."""
        if not self.save_to_disk:
            return
        states = {key: one.state_dict() for key, one in self.checkpointables.items()}
        state = {"model": self.model.state_dict(), **states, "extra": kwargs}
        with Checkpoints(self.save_dir / name, keep=1) as checkpoints:
            checkpoints.save(kwargs.get("iteration", -1) + 1, state, wait=True)

    def load(self, path: str | Path | None, checkpointables: Sequence[str] | None = None) -> Any:
        """Load matching values, log the others, and return the additional values.

        The path is a checkpoint by this class or of a run, or a ``.safetensors`` file; "" is none.
        """
        if path is None or str(path) == "":
            _log.info("no checkpoint to load: the model is as it was made")
            return {}
        load_weights(self.model, path)
        if Path(path).is_file():
            return {}
        found = find_checkpoint(path, None)
        assert found is not None
        state = Checkpoints(found.parent).load(found).shared
        if "run" in state:  # a resumed run restores the rest itself
            return {"iteration": state["run"]["step"] - 1}
        for key in self.checkpointables if checkpointables is None else checkpointables:
            if key in state:
                self.checkpointables[key].load_state_dict(state[key])
        return state["extra"]

    def resume_or_load(self, path: str | Path | None, *, resume: bool = True) -> Any:
        """Load the last checkpoint to resume from, or else the weights of ``path``."""
        if resume and self.has_checkpoint():
            return self.load(self.get_checkpoint_file())
        return self.load(path, checkpointables=[])

    def has_checkpoint(self) -> bool:
        """Return whether there is a last checkpoint."""
        return (self.save_dir / "last_checkpoint").is_file()

    def get_checkpoint_file(self) -> str:
        """Return the path of the last checkpoint, or "" if there is none."""
        if not self.has_checkpoint():
            return ""
        return str(self.save_dir / (self.save_dir / "last_checkpoint").read_text().strip())

    def tag_last_checkpoint(self, last_filename_basename: str) -> None:
        """Mark a checkpoint as the last."""
        if self.save_to_disk and dist.is_main():
            write_atomic(self.save_dir / "last_checkpoint", last_filename_basename)
