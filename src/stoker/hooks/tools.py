"""Hooks to look inside: plain functions at points, and a profiler window."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from stoker.core.errors import did_you_mean
from stoker.core.log import get_logger
from stoker.hooks.base.hook import POINTS, Hook, Priority
from stoker.run import Run
from stoker.storage import atomic_file

_log = get_logger()


class Callback(Hook):
    """Plain functions at points: ``Callback(after_step=lambda run: print(run.step))``."""

    def __init__(
        self,
        *,
        name: str = "Callback",
        priority: int = Priority.NORMAL,
        **points: Callable[[Run], Any],
    ) -> None:
        self.name = name
        self.priority = priority
        for point, function in points.items():
            if point not in POINTS:
                raise ValueError(
                    f"no point is named {point!r}{did_you_mean(point, POINTS)} (there is "
                    f"{', '.join(POINTS)})"
                )
            if not callable(function):
                raise TypeError(
                    f"{point} is a {type(function).__name__}, expected a function of the run"
                )
            setattr(self, point, function)


class Profiler(Hook):
    """Records a window of steps with torch.profiler, as a trace for chrome://tracing or Perfetto.

    Args:
        start: the number of finished steps at which the window opens.
        steps: how many steps it covers.
        path: where the trace goes; None means ``trace.json`` in the run folder.
    """

    priority = Priority.MEASURE
    same_on_all_ranks = True
    writes = True

    def __init__(self, start: int = 10, steps: int = 5, path: str | Path | None = None) -> None:
        if start < 0 or steps < 1:
            raise ValueError(
                f"a window opens at step 0 or later and has steps, got {start}, {steps}"
            )
        self.start, self.steps = start, steps
        self.path = Path(path) if path is not None else None
        self._profile: Any = None

    def before_train(self, run: Run) -> None:
        """Refuse a run that leaves no place to write to."""
        if self.path is None and run.dir is None:
            raise ValueError(
                "Profiler has nowhere to write: give the Trainer a run_dir, or Profiler a path"
            )

    def before_step(self, run: Run) -> None:
        """Open the window."""
        if run.step == self.start and self._profile is None:
            activities = [torch.profiler.ProfilerActivity.CPU]
            if run.engine.device.type == "cuda":  # untested: no such device here
                activities.append(torch.profiler.ProfilerActivity.CUDA)
            self._profile = torch.profiler.profile(activities=activities)
            self._profile.start()

    def after_step(self, run: Run) -> None:
        """Close the window."""
        if self._profile is not None and run.step >= self.start + self.steps:
            self._finish(run)

    def after_train(self, run: Run) -> None:
        """Close a window that the run ended in."""
        if self._profile is not None:
            self._finish(run)
        elif run.step <= self.start:
            _log.warning(
                f"no profile was taken: its window opens at step {self.start}, "
                f"the run ended at step {run.step}"
            )

    def _finish(self, run: Run) -> None:
        self._profile.stop()
        path = self.path or (run.dir / "trace.json" if run.dir is not None else Path("trace.json"))
        with atomic_file(path) as temporary:
            self._profile.export_chrome_trace(str(temporary))
        self._profile = None
        _log.info(f"profile of {self.steps} steps from step {self.start}: {path}")
