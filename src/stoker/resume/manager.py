"""`CheckpointManager`: decides when a run is saved, saves it, and restores it."""

import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from datetime import datetime
from pathlib import Path
from time import perf_counter
from types import TracebackType
from typing import Any, NamedTuple, Self

from stoker.checkpoint import Checkpoints
from stoker.checkpoint.format.names import MANIFEST, is_here
from stoker.core import dist
from stoker.core.errors import CheckpointError
from stoker.core.log import get_logger
from stoker.core.membership import Membership
from stoker.data import BatchFeeder
from stoker.hooks.base.dispatch import HookList
from stoker.hooks.checkpoint import Checkpoint
from stoker.resume.elastic import check_elastic, receive_state, send_state
from stoker.resume.history_files import HistoryFiles
from stoker.resume.lookup import find_candidates, first_readable, load_checkpoint
from stoker.resume.record import RunRecord
from stoker.resume.run_state import Restored, RunState, Stage, is_beyond
from stoker.resume.signals import SignalHandler, StopWaiting
from stoker.rundir.folder import ORIGIN, resume_path
from stoker.rundir.identity import Identity
from stoker.rundir.upload import RunUploader
from stoker.storage import display, url_of

_log = get_logger()


class ValidationRecord(NamedTuple):
    """The last validation: its step, when it ended, and its duration in seconds."""

    step: int
    when: float
    seconds: float


class CheckpointManager:
    """Saves a fit between its steps, and restores it.

        with manager          opens the checkpoint folder; closes it when the fit is over
          restore             before hooks begin: counters, model, optimizer, hooks, data position
          begin               hooks have begun: their state again, RNG; or the first save
            begin_epoch       the same for a run that resumes in the middle of an epoch
            windows           the batches of each step; none if only the epoch's end is left
              before_val      save, if a validation takes longer than the grace period allows
              after_step      save, if due
            leave_epoch       the run leaves the epoch early: save before hooks see its end
            after_epoch       save, if due, and at the end

    The `Checkpoint` hook says when to save and what to keep. Without one nothing is saved;
    signals are handled all the same.

    Args:
        state: captures and restores the run.
        hooks: the hooks that take part; at most one is a `Checkpoint`.
        last_validation: returns the record of the last validation.
        grace: seconds allowed for the final checkpoint after a signal.
        identity: what the run is made of, to record and to compare; None for a later fit.
    """

    def __init__(
        self,
        state: RunState,
        hooks: HookList,
        last_validation: Callable[[], ValidationRecord],
        grace: float,
        identity: Identity | None = None,
    ) -> None:
        self._state = state
        self._run = state.run
        self._last_validation = last_validation
        found = [hook for hook in hooks if isinstance(hook, Checkpoint)]
        if len(found) > 1:
            names = ", ".join(repr(hook.name) for hook in found)
            raise ValueError(f"a run has one Checkpoint hook, got {len(found)}: {names}")
        self._hook = found[0] if found else None
        folder = self._hook.folder_for(self._run) if self._hook is not None else None
        self.checkpoints: Checkpoints | None = None
        if self._hook is not None and folder is not None:
            hook = self._hook
            self.checkpoints = Checkpoints(
                folder,
                keep=hook.keep,
                keep_every=hook.keep_every,
                best=hook.best,
                on_saved=self._saved,
            )
        self._uploader = self._make_uploader()
        self._record = RunRecord(self._run.dir, folder, identity, hooks)
        self._is_new_folder = False
        self.signals = SignalHandler(self._run.requests, grace)
        self.restored: Restored | None = None
        self.later: Path | None = None
        self._origin: str | None = None
        self._path: Path | None = None
        self._left_early = False
        self._saved_at: int | None = None
        self._hooks = hooks

    def __enter__(self) -> Self:
        """Become the only run that saves into the folder."""
        if self.checkpoints is not None and self._hook is not None:
            is_new = not self.checkpoints.folder.exists()
            self.checkpoints.open()
            self._is_new_folder = is_new  # only now that the folder is ours
            self._hook.opened(self.checkpoints)
            in_run = self.checkpoints.folder.parent == self._run.dir
            if in_run and not self.checkpoints.is_direct:
                self._state.history_files = HistoryFiles(self._run.dir)
        if self._uploader is not None:
            with self._closing_on_error():
                self._uploader.start()
        return self

    @contextmanager
    def _closing_on_error(self) -> Iterator[None]:
        try:
            yield
        except BaseException:
            if self.checkpoints is not None:
                self.checkpoints.close()
            raise

    def _make_uploader(self) -> RunUploader | None:
        """Return what copies the run to its store; None if it has none, or another rank does."""
        run_dir, hook = self._run.dir, self._hook or Checkpoint()
        url = url_of(run_dir) if run_dir is not None else None
        if url is None and hook.upload_every is not None:
            raise ValueError(
                f"upload_every is {str(hook.upload_every)!r}, but the run is not in an object "
                "store: set run_dir to a URL such as s3://bucket/runs, or leave it out"
            )
        if url is None or run_dir is None or not dist.is_main():
            return None
        return RunUploader(run_dir, url, self.checkpoints, hook.upload_every, hook.upload_timeout)

    def _saved(self, path: Path) -> None:
        """Pass on that a checkpoint is complete; called on rank 0, in the background."""
        assert self._hook is not None
        self._hook.saved(path)
        if self._uploader is not None:
            self._uploader.saved(path)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Wait for the last save, and release the folder.

        A run that failed before its first step leaves nothing behind.
        """
        began = perf_counter()
        with nullcontext() if error is None else dist.alone():
            self._close(failed=error is not None)
        if self._hook is not None:
            self._hook.waited += perf_counter() - began
        if error is not None and self._run.step == 0 and dist.is_main():
            if self.checkpoints is not None and self._is_new_folder:
                shutil.rmtree(self.checkpoints.folder, ignore_errors=True)
            self._record.remove()

    def _close(self, *, failed: bool) -> None:
        """Wait for the last save and its copy in the store, then release the folder."""
        try:
            if self.checkpoints is not None:
                self.checkpoints.wait()
            if self._uploader is not None:
                self._uploader.close(failed=failed)
        finally:
            if self.checkpoints is not None:
                self.checkpoints.close()

    # Restore

    def restore(self, feeder: BatchFeeder, resume: str | Path, loaded: Path | None = None) -> None:
        """Restore the newest checkpoint, or the one named or loaded, if there is one."""
        run = self._run
        self._record.log_changed_fit()
        if (members := dist.members()) is not None:
            check_elastic(run, self._hooks)
            if members.begin_fit():
                if not self._join(members, feeder):
                    run.requests.confirm_stop("a later fit of this run has been reached already")
                return
        if run.step and loaded is None and resume_path(resume) is None:
            self._continue_here(feeder, resume)
            return
        if resume == "never" and self.checkpoints is not None and self.checkpoints.list():
            raise CheckpointError(
                f"resume='never', but '{self.checkpoints.folder}' holds the checkpoints of another "
                "run: choose another folder"
            )
        self._origin = resume_path(resume)
        paths = [loaded] if loaded is not None else find_candidates(resume, self.checkpoints)
        first_readable(paths, lambda path: self._restore_from(path, feeder))

    def _restore_from(self, path: Path, feeder: BatchFeeder) -> None:
        run = self._run
        saved = load_checkpoint(path, run.engine)
        if is_beyond(saved, run.max_epochs, run.max_steps):
            self.later = path  # it belongs to a later fit of the script
            run.requests.confirm_stop("a later fit of this run has been reached already")
        else:
            self.restored = self._state.restore(saved, feeder)
            self._path = path
            if self.checkpoints is not None:
                self.checkpoints.continue_from(path)
            self._record.log_changes(path)
            where = path if is_here(path) else display(path)
            _log.info(f"resuming from {where}: {run.where()}")
        if self._origin is None:
            self._origin = saved.info.get(ORIGIN)

    def _join(self, members: Membership, feeder: BatchFeeder) -> bool:
        """Join an elastic run at its current step; return False if it is in a later fit."""
        received = members.join()
        if received is None:
            return False
        self.restored = receive_state(received, self._state, feeder)
        _log.info(f"joining {self._run.dir}: {self._run.where()}", ranks=None)
        return True

    def _admit(self, feeder: BatchFeeder, stage: Stage) -> None:
        """Let processes join an elastic run here, if some have requested it."""
        members = dist.members()
        if members is not None and not self._run.done:
            validated_at = self._last_validation().step
            members.admit(lambda: send_state(self._state, feeder, stage, validated_at))

    def _continue_here(self, feeder: BatchFeeder, resume: str | Path) -> None:
        """Continue a trainer that has trained before, also within an epoch."""
        if resume == "never":
            raise ValueError("resume='never', but this trainer has trained: make a new one")
        before = self._run.feeder
        if before is not None and before.loader is feeder.loader:
            if before.user_state is not None:
                feeder.track_state(before.user_state)
            feeder.load_state_dict(before.state_dict())

    def log_finished(self) -> None:
        """Log that there is nothing to train, and from when the results are."""
        run, path = self._run, self._path
        state = f"nothing left to do: {run.stop_reason or run.where()}"
        if path is None or not is_here(path):
            _log.info(state)
            return
        when = datetime.fromtimestamp((path / MANIFEST).stat().st_mtime)
        results = ", ".join(f"{name} {value:.4g}" for name, value in run.metrics.items())
        _log.warning(
            f"already finished; results of {when:%-d %b %Y, %H:%M}"
            f"{f': {results}' if results else ''}. This start trained nothing; {state}"
        )

    @property
    def nothing_left(self) -> bool:
        """Whether neither a step nor the end of an epoch is left."""
        return self._run.done and not (self.restored is not None and self.restored.within_epoch)

    @property
    def starts(self) -> bool:
        """Whether training starts here: from scratch, or from what another trainer saved."""
        return self.restored.is_imported if self.restored is not None else self._run.step == 0

    @property
    def has_epoch(self) -> bool:
        """Whether there is an epoch to run: a new one, or the rest of one."""
        return self.restored is not None or not self._run.done

    def begin(self, feeder: BatchFeeder) -> None:
        """Begin training: from the restored state, or with a first save."""
        self._record.write()
        starts = self.starts
        if self.checkpoints is not None:
            self._state.track(feeder)
        if self.restored is not None and not self.restored.within_epoch:
            self._finish_restore()
            feeder.restore_state()
        if starts:
            self._save(feeder, "between", wait=True)  # so that there is always one to resume from
        if self.restored is None:
            dist.begin_member()

    def begin_epoch(self) -> bool:
        """Begin an epoch, possibly in its middle.

        Returns:
            Whether the validation of the last step was interrupted and has to be made now.
        """
        self._left_early = False
        owed = self.restored is not None and self.restored.owes_validation
        if self.restored is not None:
            self._finish_restore()
        dist.begin_member()
        return owed

    def _finish_restore(self) -> None:
        assert self.restored is not None
        self.restored.finish()
        self.restored = None

    # Save

    def after_step(self, feeder: BatchFeeder) -> None:
        """Save if due; after the last step of an epoch later, when the epoch has ended."""
        self._run.requests.may_exit = False
        self._save_if_due(feeder)
        if dist.members() is not None and not (
            feeder.exhausted or self._run.requested("end_epoch")
        ):
            self._admit(feeder, "within")

    def _save_if_due(self, feeder: BatchFeeder) -> None:
        run, hook = self._run, self._hook
        if self.checkpoints is None or hook is None:
            return
        self._take_over_saves(self.checkpoints)
        if self.checkpoints.background.error is not None:
            self.checkpoints.check()
        if not (hook.due or (run.requests.active and hook.wanted(run))):
            return
        if feeder.exhausted or run.requested("end_epoch"):
            hook.due = True
        else:
            self._save(feeder, "within")

    def before_val(self, feeder: BatchFeeder) -> None:
        """Save before a long validation, so that a signal can interrupt it."""
        if self._validation_is_long():
            self._save(feeder, "within", owes_validation=True)
            self._run.requests.may_exit = True

    def leave_epoch(self, feeder: BatchFeeder) -> None:
        """Save a run that leaves its epoch early, or that faces a long validation."""
        self._left_early = self._run.done
        if self._left_early or self._validation_is_long():
            self._save(feeder, "within")
            self._run.requests.may_exit = not self._left_early

    def after_epoch(self, feeder: BatchFeeder) -> None:
        """Save if due, and at the end; an epoch interrupted by a signal is saved already."""
        self._run.requests.may_exit = False
        interrupted = self._left_early and self._run.requests.signal
        due = self._hook is not None and self._hook.wanted(self._run)
        if (due or self._run.done) and not interrupted:
            self._save(feeder, "between")
        self._admit(feeder, "between")

    def _take_over_saves(self, checkpoints: Checkpoints) -> None:
        """Request a save if the process that was rank 0 of an elastic run has not finished one.

        All ranks save then, since a save has collectives. At the end of the run they do so anyway.
        """
        if dist.inherited() and not checkpoints.is_open:
            checkpoints.open()
            is_lost = self._saved_at not in {None, *checkpoints.list_local()}
            if is_lost and not self._run.done:
                self._run.request("save")

    def _validation_is_long(self) -> bool:
        """Whether the last validation lasted longer than a signal leaves time for."""
        seconds = dist.all_reduce_max(self._last_validation().seconds)[0]
        return self.checkpoints is not None and seconds > self.signals.grace / 2

    def _save(
        self,
        feeder: BatchFeeder,
        stage: Stage,
        *,
        wait: bool = False,
        owes_validation: bool = False,
    ) -> None:
        """Capture the run and hand it to `Checkpoints`, which writes it in the background."""
        hook, checkpoints, run, state = self._hook, self.checkpoints, self._run, self._state
        if hook is None or checkpoints is None:
            return
        validated_at = self._last_validation().step
        ended = None if run.requests.signal else run.stop_reason
        origin = {ORIGIN: self._origin} if self._origin is not None else {}
        origin |= self._record.info
        required = wait or run.done

        def capture() -> Path:
            return checkpoints.save(
                run.step,
                state.shared(stage, validated_at, ended, owes_validation=owes_validation),
                state.own(feeder),
                state.info(validated_at) | origin,
                wait=wait or hook.must_wait(run) or (required and dist.members() is not None),
                required=required,
            )

        hook.save(capture)
        self._saved_at = run.step
        while required and not dist.on_rank0(saved := dist.is_main()):  # it was lost meanwhile
            if not saved and dist.is_main():
                capture()

    # Data, until a signal comes

    def windows(self, feeder: BatchFeeder) -> Iterable[list[Any]]:
        """Return the accumulation windows of the epoch; a signal ends a wait for one."""
        if self._run.done or self._run.requested("end_epoch"):
            return ()
        by_workers = getattr(feeder.loader, "num_workers", 0) > 0
        may_stop = by_workers and not self._run.requests.distributed  # other ranks would hang
        return self._until_stopped(feeder) if may_stop else feeder

    def _until_stopped(self, feeder: BatchFeeder) -> Iterator[list[Any]]:
        """Yield the same windows; a signal during a wait for workers ends them.

        The wait for the first one, which draws the order of the epoch, is not interrupted.
        """
        windows, signals, begun = iter(feeder), self.signals, False
        while True:
            position = feeder.position.copy()
            try:
                signals.waiting = begun and not signals.received
                window = next(windows, None)
                signals.waiting = False
            except StopWaiting:
                feeder.rewind(position)  # a window that arrived at the last moment makes no step
                return
            except BaseException:
                signals.waiting = False
                raise
            if window is None:
                return
            begun = True
            yield window
