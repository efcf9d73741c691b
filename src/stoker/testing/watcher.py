"""Looking into trainings that others start: every `Trainer` made within has a watcher.

Two names of `stoker.trainer` stand for something else meanwhile, in this process alone:

    HookList    the same list, with the watcher's calls before and after those of all hooks. The
                watcher is no hook: it has no name, no priority and no state, so what is saved and
                what hooks see of each other is as without it.
    Keeper      tells the watcher how the run is taken down, and when it waits for data.
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
from stoker.resume.capture import RunState
from stoker.resume.manager import CheckpointManager
from stoker.run import Run


class Watcher:
    """What may be done at each moment; nothing, unless overridden."""

    def begins(self, state: RunState, saves_to: Path) -> None:
        """A fit begins; ``saves_to`` is where it keeps its checkpoints."""

    def before(self, point: str, run: Run) -> None:
        """The run is at a point, and no hook has been called yet."""

    def after(self, point: str, run: Run) -> None:
        """The run is at a point, and all hooks have been called."""

    def fetches(self, run: Run) -> None:
        """The batches of a step are about to be fetched."""

    def fetched(self, run: Run) -> None:
        """They are there; no hook has seen them."""


@contextmanager
def watching(watcher: Watcher) -> Iterator[None]:
    """Within it, trainers that are made are watched.

    Raises:
        ConfigError: from `fit`, for a run that saves nothing and so can never go on.
    """

    class Hooks(HookList):
        """The watcher before and after all hooks."""

        def __init__(self, hooks: Iterable[Hook | None], run: Run) -> None:
            super().__init__(hooks, run)
            for point in POINTS:
                first, last = _call(watcher.before, point), _call(watcher.after, point)
                self.calls[point] = (first, *self.calls[point], last)

    class Keeps(CheckpointManager):
        """Tells the watcher."""

        def take_up(
            self, feeder: BatchFeeder, resume: str | Path, loaded: Path | None = None
        ) -> None:
            if self._is_watched():
                if self._hook is None or self._hook.checkpoints is None:
                    raise ConfigError(
                        "this run saves nothing, so a killed one begins anew: it needs a "
                        "hooks.Checkpoint() and a run folder"
                    )
                watcher.begins(self._state, self._hook.checkpoints.folder)
            super().take_up(feeder, resume, loaded)

        def windows(self, feeder: BatchFeeder) -> Iterable[list[Any]]:
            windows = super().windows(feeder)
            return _told(windows, watcher, self._run) if self._is_watched() else windows

        def _is_watched(self) -> bool:
            """Not in a fast_dev_run, which calls another list of hooks."""
            return self._run.calls is self._state.hooks.calls

    with _standing_in("HookList", Hooks), _standing_in("CheckpointManager", Keeps):
        yield


def _call(tell: Callable[[str, Run], None], point: str) -> Callable[[Run], None]:
    return lambda run: tell(point, run)


def _told(windows: Iterable[list[Any]], watcher: Watcher, run: Run) -> Iterator[list[Any]]:
    source = iter(windows)
    while True:
        watcher.fetches(run)
        window = next(source, None)
        if window is None:
            return
        watcher.fetched(run)
        yield window


@contextmanager
def _standing_in(name: str, other: type) -> Iterator[None]:
    before = getattr(trainer, name)
    setattr(trainer, name, other)
    try:
        yield
    finally:
        setattr(trainer, name, before)
