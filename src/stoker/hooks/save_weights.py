"""`SaveWeights`: write ``model.safetensors``."""

from pathlib import Path

from stoker.checkpoint.format.weights_file import extra_state, write_weights
from stoker.core import dist
from stoker.core.every import Every
from stoker.engine import unwrap
from stoker.hooks.base.hook import Priority
from stoker.hooks.base.periodic import Periodic
from stoker.run import Run
from stoker.rundir import files
from stoker.storage import atomic_file, explain_write_errors, local_path


class SaveWeights(Periodic):
    """Write the weights to ``model.safetensors`` at the end of training.

    The file is replaced atomically, so a reader always finds a complete one. It is also written
    when ``every`` is due and when the run is requested to save (``run.request("save")``).

    Args:
        path: The file to write. None means ``model.safetensors`` in the run folder.
        every: How often to write during training, such as ``"1ep"``. None writes only at the end.
        optional: Write nothing if the run has no folder, instead of raising an error.
    """

    priority = Priority.SAVE
    same_on_all_ranks = True
    writes = True
    request = "save"

    def __init__(
        self,
        path: str | Path | None = None,
        *,
        every: int | str | Every | None = None,
        optional: bool = False,
    ) -> None:
        super().__init__(every)
        self.path = local_path(path) if path is not None else None
        self.optional = optional

    def before_train(self, run: Run) -> None:
        """Check that there is a file to write to."""
        super().before_train(run)
        if self.path is not None and self.path.is_dir():
            raise ValueError(
                f"SaveWeights needs the path of a file, but '{self.path}' is a folder: "
                "add a file name such as model.safetensors"
            )
        if self.path is not None or run.dir is not None:
            extra_state(unwrap(run.engine.model).state_dict())  # raises if it cannot be saved
        elif not self.optional:
            raise ValueError(
                "SaveWeights has nowhere to write: pass run_dir to the Trainer or path to the hook"
            )

    def after_train(self, run: Run) -> None:
        """Write the final weights, which may be the best ones or an average."""
        if run.error is None:
            self.act(run)

    def act(self, run: Run) -> None:
        """Write the file."""
        path = self.path or (run.dir / files.WEIGHTS if run.dir is not None else None)
        if path is None:
            return
        weights = run.engine.weights()
        if dist.is_main():
            with explain_write_errors(path), atomic_file(path) as temporary:
                write_weights(temporary, weights, run.step)
        dist.barrier()  # other ranks may read the file next
