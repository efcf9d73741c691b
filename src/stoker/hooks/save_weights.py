"""`SaveWeights`: write ``model.safetensors``."""

import math
from pathlib import Path
from string import Formatter

from stoker.checkpoint.format.weights_file import extra_state, write_weights
from stoker.core import dist
from stoker.core.errors import did_you_mean
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
        path: The file to write. None means ``model.safetensors`` in the run folder. A name may
            contain counters and results: ``"weights/{epoch:02d}-{val/loss:.3f}.safetensors"``
            writes one file each time.
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
        self.consumes = tuple(n for n in _fields(self.path) if n not in _COUNTERS)

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
        path = _filled(path, run) if self.path is not None else path
        weights = run.engine.weights()
        if dist.is_main():
            with explain_write_errors(path), atomic_file(path) as temporary:
                write_weights(temporary, weights, run.step)
        dist.barrier()  # other ranks may read the file next


_COUNTERS = ("step", "epoch", "samples")


def _fields(path: Path | None) -> list[str]:
    """Return the names in braces, checked."""
    try:
        return [field for _, field, _, _ in Formatter().parse(str(path or "")) if field is not None]
    except ValueError as error:
        raise ValueError(f"the path {str(path)!r} is no template: {error}") from None


def _filled(path: Path, run: Run) -> Path:
    """Return the path with counters and the latest results in place of their names in braces."""
    latest = {name: value for name, (value, _) in run.events.latest().items()}
    values = {name: getattr(run, name) for name in _COUNTERS} | latest | run.metrics
    missing = [name for name in _fields(path) if name not in values]
    if missing and any(name.startswith("val/") for name in values):
        near = did_you_mean(missing[0], values) or f" (known: {', '.join(sorted(values))})"
        raise ValueError(f"the path {str(path)!r} needs {missing[0]!r}, which is no result{near}")
    return Path(str(path).format_map(values | dict.fromkeys(missing, math.nan)))
