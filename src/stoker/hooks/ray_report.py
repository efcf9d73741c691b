"""`RayReport`: report results and checkpoints to Ray Train."""

import sys
from importlib import import_module
from pathlib import Path

from stoker.checkpoint import Checkpoints
from stoker.core import dist
from stoker.hooks.base.hook import Hook, Priority
from stoker.run import Run
from stoker.rundir import files


class RayReport(Hook):
    """Report results and each new checkpoint to Ray Train, after every epoch and at the end.

    It does nothing outside a Ray Train worker. ``--on ray`` adds it to a run.
    """

    observes = True
    priority = Priority.REPORT

    def __init__(self) -> None:
        self._reported: Path | None = None

    def after_epoch(self, run: Run) -> None:
        """Report the epoch."""
        self._report(run)

    def after_run(self, run: Run) -> None:
        """Report the final checkpoint, which is written after the last epoch."""
        if run.error is None and run.task == "fit":
            self._report(run)

    def _report(self, run: Run) -> None:
        if not in_ray_worker():
            return
        train = import_module("ray.train")
        saved = run.dir / files.CHECKPOINTS if run.dir is not None and dist.is_main() else None
        newest = max(Checkpoints(saved).list(), default=None) if saved is not None else None
        checkpoint = None
        if newest is not None and newest != self._reported:
            checkpoint = train.Checkpoint.from_directory(newest)
        train.report({**run.metrics, "step": run.step, "epoch": run.epoch}, checkpoint=checkpoint)
        self._reported = newest


def in_ray_worker() -> bool:
    """Return whether this process is a Ray Train worker."""
    train = sys.modules.get("ray.train")
    if train is None:
        return False
    try:
        train.get_context()
    except RuntimeError:
        return False
    return True
