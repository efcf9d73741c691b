"""Watch every `Trainer` that other code creates.

`watching` replaces two names of `stoker.trainer` in this process for the duration of a block:

    HookList             calls the watcher before and after all hooks. The watcher is not a hook: it
                         has no name, priority or state, so it changes neither what is saved nor
                         what hooks see of each other.
    CheckpointManager    notifies the watcher when a fit starts and when batches are fetched.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from stoker import trainer
from stoker.config import ConfigError
from stoker.data import BatchFeeder
from stoker.hooks import POINTS, Hook
from stoker.hooks.base.dispatch import HookList
from stoker.resume.manager import CheckpointManager
from stoker.resume.run_state import RunState
from stoker.run import Run


class Watcher:
    """Methods that are called while a training runs; override those you need."""

    def on_fit(self, state: RunState, checkpoint_dir: Path) -> None:
        """Handle the start of a fit, which saves its checkpoints to ``checkpoint_dir``."""

    def before(self, point: str, run: Run) -> None:
        """Handle a point before all hooks."""

    def after(self, point: str, run: Run) -> None:
        """Handle a point after all hooks."""

    def before_fetch(self, run: Run) -> None:
        """Handle the moment before the batches of a step are fetched."""

    def after_fetch(self, run: Run) -> None:
        """Handle the moment after the batches of a step are fetched, before any hook."""


@contextmanager
def watching(watcher: Watcher) -> Iterator[None]:
    """Watch all trainers that are created in the block.

    Raises:
        ConfigError: From `fit`, if the run saves no checkpoints and can never be resumed.
    """

    class WatchedHookList(HookList):
        """Calls the watcher before and after all hooks."""

        def __init__(self, hooks: Iterable[Hook | None], run: Run) -> None:
            super().__init__(hooks, run)
            for point in POINTS:
                first, last = _bind(watcher.before, point), _bind(watcher.after, point)
                self.calls[point] = (first, *self.calls[point], last)

    class WatchedManager(CheckpointManager):
        """Reports to the watcher."""

        def restore(
            self, feeder: BatchFeeder, resume: str | Path, loaded: Path | None = None
        ) -> None:
            if self._is_watched():
                if self.checkpoints is None:
                    raise ConfigError(
                        "this run saves no checkpoints, so it starts from scratch after a kill: "
                        "add hooks.Checkpoint() and a run folder"
                    )
                watcher.on_fit(self._state, self.checkpoints.folder)
            super().restore(feeder, resume, loaded)

        def windows(self, feeder: BatchFeeder) -> Iterable[list[Any]]:
            windows = super().windows(feeder)
            return _report_fetches(windows, watcher, self._run) if self._is_watched() else windows

        def _is_watched(self) -> bool:
            """Return False in a fast_dev_run, which uses another list of hooks."""
            return self._state.step.points is self._state.hooks

    with _replaced("HookList", WatchedHookList), _replaced("CheckpointManager", WatchedManager):
        yield


def _bind(notify: Callable[[str, Run], None], point: str) -> Callable[[Run], None]:
    return lambda run: notify(point, run)


def _report_fetches(
    windows: Iterable[list[Any]], watcher: Watcher, run: Run
) -> Iterator[list[Any]]:
    source = iter(windows)
    while True:
        watcher.before_fetch(run)
        window = next(source, None)
        if window is None:
            return
        watcher.after_fetch(run)
        yield window


@contextmanager
def _replaced(name: str, replacement: type) -> Iterator[None]:
    original = getattr(trainer, name)
    setattr(trainer, name, replacement)
    try:
        yield
    finally:
        setattr(trainer, name, original)
