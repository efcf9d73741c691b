"""`Checkpoint`: when a run is saved, and how much of it is kept."""

import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from time import perf_counter
from typing import Any

from stoker.checkpoint import Best, Checkpoints
from stoker.core import dist
from stoker.core.every import Every
from stoker.hooks.base.hook import Priority
from stoker.hooks.base.monitor import Mode, Monitor
from stoker.hooks.base.periodic import Periodic
from stoker.run import Run


class Checkpoint(Periodic):
    """Saves everything a run is into ``checkpoints/`` of its folder, so that it can go on.

    It says when; the trainer saves between steps, when all hooks are done: each ``every``, when
    `run.request("save")` was called, before the first step and at the end. Writing happens in the
    background.

    Args:
        every: how often; "auto" as often as ``max_overhead`` allows.
        max_overhead: for "auto": the share of its time that the training may wait for saves.
        keep: how many of the newest stay; None means all.
        keep_every: those whose step is a multiple of it stay for good.
        best: the name of a result; a better one is saved at once, and the best stay.
        mode: whether the best is the smallest ("min") or largest ("max"), where the name of the
            result does not say it.
        best_count: how many of the best.
        folder: where; None means ``checkpoints`` in the run folder.
        optional: for a run without a folder, save nothing instead of failing.

    `waited` is the seconds that the training has waited for saves, in all.
    """

    priority = Priority.SAVE
    same_on_all_ranks = True
    writes = True
    request = "save"

    def __init__(
        self,
        every: int | str | Every | None = "1ep",
        *,
        max_overhead: float = 0.01,
        keep: int | None = 3,
        keep_every: int | None = None,
        best: str | None = None,
        mode: Mode | None = None,
        best_count: int = 1,
        folder: str | Path | None = None,
        optional: bool = False,
    ) -> None:
        if not 0 < max_overhead < 1:
            raise ValueError(f"max_overhead is a share between 0 and 1, got {max_overhead}")
        super().__init__(None if every == "auto" else every)
        self._auto, self._max_overhead = every == "auto", max_overhead
        self.waited = self._last_wait = self._saved_when = 0.0
        self._keep, self._keep_every = keep, keep_every
        self._monitor = Monitor(best, mode) if best else None
        self._best = Best(best, self._monitor.mode, best_count) if best and self._monitor else None
        self.consumes = (best,) if best else ()
        self._folder = Path(folder) if folder is not None else None
        self._optional = optional
        self.due = self._is_new = False
        self.checkpoints: Checkpoints | None = None
        Checkpoints(
            Path(), keep=keep, keep_every=keep_every, best=self._best
        )  # wrong ones fail now

    def open(self, run: Run) -> Checkpoints | None:
        """Become the only run that saves there; None where there is no place to."""
        if self._folder is None and run.dir is None:
            if self._optional:
                return None
            raise ValueError(
                "Checkpoint has nowhere to write: give the Trainer a run_dir, or the hook a folder"
            )
        folder = self._folder or (run.dir or Path()) / "checkpoints"
        self.checkpoints = Checkpoints(
            folder,
            keep=self._keep,
            keep_every=self._keep_every,
            best=self._best,
            on_saved=self.saved,
        )
        self._is_new = False
        is_new = not folder.exists()
        self.checkpoints.open()
        self._is_new = is_new  # now that the folder is ours
        return self.checkpoints

    def saved(self, path: Path) -> None:
        """A checkpoint is whole on the disk; told in the first process, beside the training."""

    def act(self, run: Run) -> None:
        """The run is to be saved when this step is over."""
        self.due = True

    def before_train(self, run: Run) -> None:
        """See that there will be something to judge by."""
        super().before_train(run)
        if self._monitor is not None:
            self._monitor.check(run)

    def after_val(self, run: Run) -> None:
        """A result that is better than all before is saved, whatever the period."""
        super().after_val(run)
        self._judge(run, at_epoch=False)

    def after_epoch(self, run: Run) -> None:
        """The same for a result of training."""
        super().after_epoch(run)
        self._judge(run, at_epoch=True)

    def _judge(self, run: Run, *, at_epoch: bool) -> None:
        if self._monitor is None:
            return
        value = self._monitor.fresh(run, at_epoch=at_epoch)
        if value is not None and self._monitor.improves(value):
            self.due = True

    def state_dict(self) -> dict[str, Any]:
        """The best result so far."""
        return {"best": self._monitor.best if self._monitor is not None else None}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take back what `state_dict` gave."""
        if self._monitor is not None:
            self._monitor.best = state["best"]

    def after_step(self, run: Run) -> None:
        """See whether a save is due, and whether the last one went well."""
        checkpoints = self.checkpoints
        if checkpoints is not None and checkpoints.background.error is not None:
            checkpoints.check()
        if run.step % self._steps == 0 or self._by_clock or run.requests.active:
            super().after_step(run)
        if self._auto and dist.now() - self._saved_when > self._last_wait / self._max_overhead:
            self.act_once(run)

    def wanted(self, run: Run) -> bool:
        """Whether the run is to be saved now."""
        return self.due or "save" in run.requests.active

    def save(
        self, step: int, take: Callable[[], tuple[Any, Any, dict[str, Any]]], *, wait: bool
    ) -> None:
        """Copy the state that ``take`` takes down, and write it beside the training."""
        assert self.checkpoints is not None
        began = perf_counter()
        self.due = False
        shared, own, info = take()
        self.checkpoints.save(step, shared, own, info, wait=wait)
        self._saved_when = dist.now()
        wait_here = perf_counter() - began
        self.waited += wait_here
        self._last_wait = dist.all_reduce_max(wait_here)[0] if self._auto else 0.0

    def after_train(self, run: Run) -> None:
        """The trainer has saved the end of the run."""

    def after_run(self, run: Run) -> None:
        """Wait for the last save, and let others write there.

        A run that failed before its first step leaves nothing behind.
        """
        if self.checkpoints is None:
            return
        checkpoints, self.checkpoints = self.checkpoints, None
        began = perf_counter()
        checkpoints.close()
        self.waited += perf_counter() - began
        if run.error is not None and run.step == 0 and self._is_new and dist.is_main():
            shutil.rmtree(checkpoints.folder, ignore_errors=True)
            with suppress(OSError):  # others may have written beside it
                checkpoints.folder.parent.rmdir()
