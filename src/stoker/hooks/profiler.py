"""`Profiler`: a torch.profiler trace of some steps."""

from pathlib import Path
from typing import Any

import torch

from stoker.core.errors import check_number
from stoker.core.log import get_logger
from stoker.hooks.base.hook import Hook, Priority
from stoker.run import Run
from stoker.rundir import files
from stoker.storage import atomic_file, local_path

_log = get_logger()


class Profiler(Hook):
    """Profile some steps with torch.profiler and write a trace for Perfetto or chrome://tracing.

    Args:
        start: The number of finished steps after which profiling starts.
        steps: How many steps to profile.
        path: The trace file. None means ``trace.json`` in the run folder.
    """

    priority = Priority.MEASURE
    same_on_all_ranks = True
    writes = True

    def __init__(self, start: int = 10, steps: int = 5, path: str | Path | None = None) -> None:
        check_number("start", start, integer=True)
        check_number("steps", steps, integer=True)
        if start < 0 or steps < 1:
            raise ValueError(
                f"start must be at least 0 and steps at least 1, got start={start}, steps={steps}"
            )
        self.start, self.steps = start, steps
        self.path = local_path(path) if path is not None else None
        self._profile: Any = None

    def before_train(self, run: Run) -> None:
        """Check that there is a file to write to."""
        if self.path is None and run.dir is None:
            raise ValueError(
                "Profiler has nowhere to write: pass run_dir to the Trainer or path to the hook"
            )

    def before_step(self, run: Run) -> None:
        """Start profiling."""
        if run.step == self.start and self._profile is None:
            activities = [torch.profiler.ProfilerActivity.CPU]
            if run.engine.device.type == "cuda":  # untested: CI has no accelerator
                activities.append(torch.profiler.ProfilerActivity.CUDA)
            self._profile = torch.profiler.profile(activities=activities)
            self._profile.start()

    def after_step(self, run: Run) -> None:
        """Write the trace after the last profiled step."""
        if self._profile is not None and run.step >= self.start + self.steps:
            self._finish(run)

    def after_train(self, run: Run) -> None:
        """Write the trace of a run that ended early, or warn that there is none."""
        if self._profile is not None:
            self._finish(run)
        elif run.step <= self.start:
            _log.warning(
                f"no step was profiled: profiling starts after step {self.start}, "
                f"but the run ended at step {run.step}"
            )

    def _finish(self, run: Run) -> None:
        self._profile.stop()
        path = self.path or (run.dir / files.TRACE if run.dir is not None else Path(files.TRACE))
        with atomic_file(path) as temporary:
            self._profile.export_chrome_trace(str(temporary))
        self._profile = None
        _log.info(f"profile of {self.steps} steps from step {self.start}: {path}")
