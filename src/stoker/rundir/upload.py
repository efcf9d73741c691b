"""`RunUploader`: copies a run from its working folder to its store, in the background."""

import threading
import time
from pathlib import Path

from stoker.checkpoint import Checkpoints
from stoker.checkpoint.format.manifest import Manifest
from stoker.checkpoint.format.names import step_in_name
from stoker.core.errors import CheckpointError
from stoker.core.every import Every
from stoker.core.log import get_logger
from stoker.rundir import files
from stoker.storage.blobs import Blobs
from stoker.storage.mirror import Mirror

_log = get_logger()

_PERIOD = 15.0
"""Seconds between two copies of the metrics and the log, while no checkpoint is saved."""

_LONGEST_PAUSE = 30.0


class RunUploader:
    """Copies checkpoints and the other files of a run to its store; rank 0 uses it alone.

    A store that does not answer stops nothing: what is to be copied waits, and of several
    checkpoints that wait only the newest is copied, and those that are kept for good.

    Args:
        run_dir: the working folder.
        url: the place of the run in the store.
        checkpoints: those of the run, None if it has none.
        every: how often a checkpoint is copied; None means each.
        timeout: seconds that the end of a run waits for the last copy.
    """

    def __init__(
        self,
        run_dir: Path,
        url: str,
        checkpoints: Checkpoints | None,
        every: Every | None,
        timeout: float,
    ) -> None:
        self._url, self._checkpoints = url, checkpoints
        self._every, self._timeout = every, timeout
        self._mirror = Mirror(run_dir, Blobs(url))
        self._changed = threading.Condition()
        self._pending: set[int] = set()
        self._is_closing = self._is_abandoned = False
        self._last: tuple[int, int, float] | None = None
        self._thread: threading.Thread | None = None
        self._fault: Exception | None = None

    def start(self) -> None:
        """Start copying; what an earlier attempt could not copy comes first.

        Raises:
            CheckpointError: another process has written to the store since the run was read.
        """
        if self._mirror.has_changed():
            raise CheckpointError(
                f"the run in '{self._url}' was continued by another process while this one waited "
                "for it: run the same command again"
            )
        if self._checkpoints is not None and not self._checkpoints.is_direct:
            stored = self._checkpoints.list_stored()
            waiting = [*self._checkpoints.list_local()][-1:]
            self._pending = {step for step in waiting if step > max(stored, default=-1)}
        # a daemon: a run that has given up on its store can exit
        self._thread = threading.Thread(target=self._work, name="stoker-upload", daemon=True)
        self._thread.start()

    def saved(self, checkpoint: Path) -> None:
        """Have a checkpoint copied that was just saved, if it is due."""
        step = step_in_name(checkpoint.name)
        assert step is not None
        if self._checkpoints is None or self._checkpoints.is_direct:
            return
        epoch = Manifest.read(checkpoint).info.get("epoch", 0)
        if self._is_due(step, epoch):
            self._last = step, epoch, time.monotonic()
            self._add(step)

    def _is_due(self, step: int, epoch: int) -> bool:
        if self._every is None or self._last is None:
            return True
        before = self._last
        if self._every.unit == "min":
            return time.monotonic() - before[2] >= 60 * self._every.count
        count, index = int(self._every.count), 0 if self._every.unit == "st" else 1
        return (step, epoch)[index] // count > before[index] // count

    def _add(self, step: int) -> None:
        with self._changed:
            self._pending.add(step)
            self._changed.notify_all()

    def close(self, *, failed: bool) -> None:
        """Copy the last checkpoint, and wait for it.

        Args:
            failed: whether the run has failed; then a fault of the store is only logged.

        Raises:
            CheckpointError: it could not be copied within the time limit.
        """
        if self._thread is None:
            return
        if self._checkpoints is not None and not self._checkpoints.is_direct:
            for step in [*self._checkpoints.list_local()][-1:]:
                self._add(step)
        with self._changed:
            self._is_closing = True
            self._changed.notify_all()
        self._thread.join(self._timeout)
        self._is_abandoned = True
        if self._thread.is_alive() or self._pending:
            self._report_end(failed=failed)

    def _report_end(self, *, failed: bool) -> None:
        reason = f" ({self._fault})" if self._fault is not None else ""
        message = (
            f"the end of the run could not be copied to '{self._url}' within {self._timeout:g} s"
            f"{reason}; it is complete on this machine, and the same command copies it when the "
            "store answers"
        )
        if failed:
            _log.warning(message)
        else:
            raise CheckpointError(message)

    # In the background

    def _work(self) -> None:
        pause = 1.0
        while not self._is_abandoned:
            with self._changed:
                self._changed.wait_for(lambda: self._pending or self._is_closing, _PERIOD)
                is_last = self._is_closing
            try:
                self._copy()
                pause = 1.0
                self._report_success()
                if is_last and not self._pending:
                    return
            except (OSError, CheckpointError) as error:
                self._report_fault(error)
                time.sleep(min(pause, self._timeout / 10))
                pause = min(2 * pause, _LONGEST_PAUSE)

    def _copy(self) -> None:
        """Copy the files, then the checkpoints that wait: metrics are there before their step."""
        self._mirror.push()
        while self._pending and not self._is_abandoned:
            newest = max(self._pending)
            assert self._checkpoints is not None
            self._checkpoints.upload(newest)
            with self._changed:
                self._pending.discard(newest)
                older = {step for step in self._pending if step < newest}
                self._pending -= {s for s in older if not self._checkpoints.is_kept_for_good(s)}

    def _report_fault(self, error: Exception) -> None:
        if self._fault is None:
            _log.warning(
                f"the run is not copied to '{self._url}' at the moment: {_cause(error)}; training "
                "continues, and what is in the store stays"
            )
        self._fault = error

    def _report_success(self) -> None:
        if self._fault is not None:
            self._fault = None
            _log.info(f"the run is copied to '{self._url}' again")


def push_files(run_dir: Path, url: str) -> None:
    """Copy the files of a run that have changed to its store, apart from checkpoints."""
    Mirror(run_dir, Blobs(url)).push()


def pull_files(run_dir: Path, url: str) -> None:
    """Copy the files of a run from its store, unless those in the working folder are newer.

    They are newer if the working folder has a checkpoint of a later step: this machine was killed
    before it could copy it.
    """
    checkpoints = Checkpoints(run_dir / files.CHECKPOINTS)
    stored = checkpoints.list_stored()
    is_ahead = max(checkpoints.list_local(), default=-1) > max(stored, default=-1)
    Mirror(run_dir, Blobs(url, patience=15.0)).pull(replace=not is_ahead)
    if stored:
        checkpoints.folder.mkdir(parents=True, exist_ok=True)


def _cause(error: Exception) -> str:
    return error.strerror if isinstance(error, OSError) and error.strerror else str(error)
