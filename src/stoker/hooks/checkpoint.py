"""`Checkpoint`: when a run is saved, and which checkpoints are kept."""

from collections.abc import Callable
from math import inf
from pathlib import Path
from time import perf_counter
from typing import Any

from stoker.checkpoint import Best, Checkpoints
from stoker.core import dist
from stoker.core.errors import check_number
from stoker.core.every import Every
from stoker.hooks.base.hook import Priority
from stoker.hooks.base.monitor import Mode, Monitor
from stoker.hooks.base.periodic import Periodic
from stoker.run import Run
from stoker.rundir import files
from stoker.storage import local_path

_FIRST_EPOCHS = 10
"""Epochs at the beginning of a run that are all saved, however short they are."""

_LONGEST_PAUSE = 60.0
"""Seconds after which even short epochs are saved."""


class Checkpoint(Periodic):
    """Save the complete state of the run into ``checkpoints/`` of its folder, to resume from.

    The hook only decides when; the trainer saves between two steps, after all hooks: each
    ``every``, when a hook calls ``run.request("save")``, before the first step and at the end.
    Files are written in the background.

    Args:
        every: how often, such as "1ep" or "10min". "epoch" means after each epoch; after the first
            ten, short epochs are saved only as often as ``max_overhead`` allows, but at least once
            a minute. "auto" means as often as ``max_overhead`` allows, also within an epoch.
        max_overhead: for "epoch" and "auto": the share of its time that training may wait for
            saves.
        keep: how many of the newest checkpoints to keep; None keeps all.
        keep_every: checkpoints whose step is a multiple of it are never removed.
        best: the name of a result, such as "val/loss"; a better one is saved at once, and the best
            checkpoints are kept.
        mode: whether the best value is the smallest ("min") or the largest ("max"); needed only if
            the name does not tell.
        best_count: how many of the best to keep.
        folder: where to save; None means ``checkpoints`` in the run folder.
        optional: in a run without a folder, save nothing instead of failing.
        upload_every: for a run in an object store: how often a checkpoint is copied there, such as
            "1ep" or "10min"; None means each. The end of the run is always copied.
        upload_timeout: for a run in an object store: seconds that its end waits for the last copy.

    Attributes:
        waited: seconds that training has waited for saves so far.
        due: whether the run is to be saved after the current step.
    """

    priority = Priority.SAVE
    same_on_all_ranks = True
    writes = True
    request = "save"

    def __init__(
        self,
        every: int | str | Every | None = "epoch",
        *,
        max_overhead: float = 0.01,
        keep: int | None = 3,
        keep_every: int | None = None,
        best: str | None = None,
        mode: Mode | None = None,
        best_count: int = 1,
        folder: str | Path | None = None,
        optional: bool = False,
        upload_every: int | str | Every | None = None,
        upload_timeout: float = 600.0,
    ) -> None:
        check_number("max_overhead", max_overhead)
        check_number("upload_timeout", upload_timeout)
        if not upload_timeout > 0:
            raise ValueError(f"upload_timeout must be positive, got {upload_timeout!r}")
        self.upload_every = None if upload_every is None else Every.of(upload_every)
        self.upload_timeout = upload_timeout
        if not 0 < max_overhead < 1:
            raise ValueError(f"max_overhead must be between 0 and 1, got {max_overhead}")
        self._paced = every if every in ("epoch", "auto") else None
        super().__init__(None if self._paced else every)
        self._max_overhead = max_overhead
        self.waited = self._last_wait = self._saved_when = 0.0
        self.keep, self.keep_every = keep, keep_every
        self._monitor = Monitor(best, mode) if best else None
        self.best = Best(best, self._monitor.mode, best_count) if best and self._monitor else None
        self.consumes = (best,) if best else ()
        self._folder = local_path(folder, "Checkpoint(folder=…)") if folder is not None else None
        self._optional = optional
        self.due = False
        Checkpoints(Path(), keep=keep, keep_every=keep_every, best=self.best)  # validate them now

    @property
    def is_auto(self) -> bool:
        """Whether the time that saves take decides after which step to save."""
        return self._paced == "auto"

    # Where and what

    def folder_for(self, run: Run) -> Path | None:
        """Return the folder to save into, None to save nothing."""
        if self._folder is not None:
            return self._folder
        if run.dir is None and not self._optional:
            raise ValueError(
                "Checkpoint has no folder to write to: pass run_dir to the Trainer, or folder to "
                "the hook"
            )
        return run.dir / files.CHECKPOINTS if run.dir is not None else None

    def opened(self, checkpoints: Checkpoints) -> None:
        """Notification: a fit has opened the folder, and no other run saves there."""

    def must_wait(self, run: Run) -> bool:
        """Return whether training waits until this save is on disk."""
        return False

    def saved(self, path: Path) -> None:
        """Notification: a checkpoint is complete on disk; called on rank 0, in the background."""

    def after_save(self, path: Path) -> None:
        """Notification: the state is captured and will be on disk; called on all ranks."""

    def save(self, capture: Callable[[], Path]) -> None:
        """Have the trainer capture the state now, and count the seconds that training waits."""
        began = perf_counter()
        path = capture()
        seconds = perf_counter() - began
        self.after_save(path)
        self.due = False
        self.waited += seconds
        self._saved_when = dist.now()
        self._last_wait = dist.all_reduce_max(seconds)[0] if self._paced else 0.0

    # When

    def wanted(self, run: Run) -> bool:
        """Return whether the run is to be saved now."""
        return self.due or "save" in run.requests.active

    def act(self, run: Run) -> None:
        """Have the run saved after this step."""
        self.due = True

    def before_train(self, run: Run) -> None:
        """Check that the result to judge by will exist."""
        super().before_train(run)
        if self._monitor is not None:
            self._monitor.check(run)

    def after_step(self, run: Run) -> None:
        """Check whether a save is due."""
        if run.step % self._steps == 0 or self._by_clock or run.requests.active:
            super().after_step(run)
        if self._paced == "auto" and self._is_paid():
            self.act_once(run)

    def after_val(self, run: Run) -> None:
        """Save a validation result that is the best so far, whatever the period."""
        super().after_val(run)
        self._save_if_best(run, at_epoch=False)

    def after_epoch(self, run: Run) -> None:
        """Save a training result that is the best so far, whatever the period."""
        super().after_epoch(run)
        if self._paced == "epoch" and self._is_epoch_due(run):
            self.act_once(run)
        self._save_if_best(run, at_epoch=True)

    def after_train(self, run: Run) -> None:
        """Do nothing: the trainer has saved the end of the run."""

    def _is_epoch_due(self, run: Run) -> bool:
        """Return whether this epoch is saved; of an elastic run all are, whatever the time."""
        is_first = 0 < run.epoch <= _FIRST_EPOCHS
        return is_first or dist.members() is not None or self._is_paid(at_most=_LONGEST_PAUSE)

    def _is_paid(self, at_most: float = inf) -> bool:
        """Return whether the last save is long enough ago to be worth its cost."""
        pause = min(self._last_wait / self._max_overhead, at_most)
        return dist.now() - self._saved_when > pause

    def _save_if_best(self, run: Run, *, at_epoch: bool) -> None:
        if self._monitor is None:
            return
        value = self._monitor.fresh(run, at_epoch=at_epoch)
        if value is not None and self._monitor.improves(value):
            self.due = True

    def state_dict(self) -> dict[str, Any]:
        """Return the best result so far."""
        return {"best": self._monitor.best if self._monitor is not None else None}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        if self._monitor is not None:
            self._monitor.best = state["best"]
