"""`Progress`: a progress bar on a terminal or in a notebook, plain lines elsewhere."""

import sys
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from time import perf_counter
from typing import Any

from stoker.core import dist
from stoker.core.timers import Pace
from stoker.events.writers.console import format_number
from stoker.hooks.base.hook import Hook, Priority
from stoker.hooks.summary import Summary
from stoker.hooks.write import epoch_line
from stoker.run import Run

_MAX_RESULTS = 2
"""How many validation results the bar shows."""


@dataclass(slots=True, eq=False)
class _Level:
    """One bar: its label, what it counts, and how far it is."""

    label: str
    total: int | None
    started: float
    done: int = 0
    text: str = ""


class Progress(Hook):
    """Show a progress bar on rank 0, and print one line of results per epoch.

    The bar shows the loss, the latest validation results, the learning rate, samples per second and
    the estimated time left; a validation adds a second bar. A run of at least five epochs or one
    minute ends with a table of its last and best results, including those of earlier attempts.

    The bar needs a terminal, or a notebook with ipywidgets. Elsewhere, plain lines are printed: one
    per epoch, and one every ``lines`` seconds in between. Output goes to standard error;
    ``NO_COLOR`` is respected.

    Args:
        refresh: Seconds between two updates of the bar.
        lines: Seconds between two lines if there is no bar.
    """

    observes = True
    priority = Priority.REPORT
    same_on_all_ranks = True

    def __init__(self, *, refresh: float = 0.25, lines: float = 30.0) -> None:
        self._refresh = refresh
        self._lines = lines
        self._bar: Any = None
        self._levels: list[_Level] = []
        self._level = _Level("", None, 0.0)
        self._due = 0.0
        self._pace = Pace(0)
        self._counts: deque[tuple[float, int]] = deque(maxlen=20)
        self._summary: Summary | None = None
        self._best: dict[str, tuple[float, int]] = {}

    # Training

    def before_train(self, run: Run) -> None:
        """Start estimating the remaining time."""
        self._pace = Pace(run.step)
        if run.step == 0:
            self._best.clear()
        self._summary = Summary(run, self._best)

    def before_epoch(self, run: Run) -> None:
        """Add the bar of the epoch."""
        limit = f"/{run.max_epochs}" if run.max_epochs is not None else ""
        steps, done = run.steps_per_epoch, run.feeder.first_step if run.feeder is not None else 0
        if run.max_steps is not None:
            last = done + run.max_steps - run.step
            steps = last if steps is None else min(steps, last)
        self._begin(f"epoch {run.current_epoch}{limit}", steps)
        self._level.done = done
        self._reset_rate(run)

    def after_step(self, run: Run) -> None:
        """Advance the bar."""
        self._level.done += 1
        if perf_counter() >= self._due:
            self._show(run)

    def after_epoch(self, run: Run) -> None:
        """Print a line with the results."""
        started = self._level.started
        self._end()
        if self._summary is not None:
            self._summary.add(run)
        if dist.is_main():
            print(epoch_line(run, perf_counter() - started), file=sys.stderr, flush=True)

    # Validation and prediction

    def before_val(self, run: Run) -> None:
        """Add the bar of the validation below that of training."""
        self._begin(run.val_name, run.feeder.batches if run.feeder is not None else None)

    def after_val_step(self, run: Run) -> None:
        """Advance the bar."""
        self._level.done += 1
        if perf_counter() >= self._due:
            self._show()

    def after_val(self, run: Run) -> None:
        """Remove the bar."""
        self._end()
        self._reset_rate(run)

    def before_predict(self, run: Run) -> None:
        """Add the bar of the prediction."""
        self._begin("predict", run.feeder.batches if run.feeder is not None else None)

    after_predict_step = after_val_step

    def after_predict(self, run: Run) -> None:
        """Remove the bar."""
        self._end()

    def after_run(self, run: Run) -> None:
        """Remove the bars and print the summary."""
        self._levels.clear()
        if self._bar is not None:
            self._bar.stop()
            self._bar = None
        summary, self._summary = self._summary, None
        if summary is not None and summary.worthwhile and run.error is None and dist.is_main():
            print(summary.text(run), file=sys.stderr, flush=True)

    def state_dict(self) -> dict[str, Any]:
        """Return the best results so far, for the summary."""
        return {"best": {name: [*best] for name, best in self._best.items()}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the best results so far."""
        self._best.clear()  # in place, because the summary holds the same dict
        self._best.update((name, tuple(best)) for name, best in state.get("best", {}).items())

    # Drawing

    def _begin(self, label: str, total: int | None) -> None:
        self._level = _Level(label, total, perf_counter())
        self._levels.append(self._level)
        if self._bar is None:
            wait = min(0.1, self._refresh) if _can_draw() else self._lines
            self._due = self._level.started + wait

    def _end(self) -> None:
        self._levels.pop()
        if self._levels:
            self._level = self._levels[-1]
        if self._bar is not None:
            for task in self._bar.tasks[len(self._levels) :]:
                task.visible = False

    def _show(self, run: Run | None = None) -> None:
        """Update the bar or print a line; pass the run to include the state of training."""
        if not dist.is_main():
            return
        level, now = self._level, perf_counter()
        if _can_draw():
            level.text = "  ".join(self._describe(run)) if run is not None else ""
            self._draw()
            self._due = perf_counter() + self._refresh
        elif now >= self._due:
            count = f"{level.done}/{level.total}" if level.total else str(level.done)
            state = self._describe(run) if run is not None else ()
            print("  ".join([level.label, count, *state]), file=sys.stderr, flush=True)
            self._due = now + self._lines

    def _draw(self) -> None:
        if self._bar is None:
            self._bar = _make_bar()
            self._bar.start()
        for _ in self._levels[len(self._bar.tasks) :]:
            self._bar.add_task("", visible=False, text="")
        for task, level in zip(self._bar.tasks, self._levels, strict=False):
            task.description, task.visible = level.label, True
            task.completed, task.total = level.done, level.total
            task.fields["text"] = level.text
        self._bar.refresh()

    def _describe(self, run: Run) -> Iterator[str]:
        """Yield the loss, results, rates and remaining time of training."""
        with dist.alone():
            readings = run.events.readings()
        results = [name for name in readings if name.startswith("val/")][-_MAX_RESULTS:]
        for name, value in readings.items():
            if name.startswith(("train/", "lr")) or name in results:
                yield f"{name.removeprefix('train/')} {format_number(name, value)}"
        rate = self._rate(run)
        if rate is not None:
            yield f"{format_number('', rate)} samples/s"
        eta = self._pace.eta(run.step, run.total_steps)
        if eta is not None:
            minutes, seconds = divmod(round(eta), 60)
            yield f"eta {minutes // 60}:{minutes % 60:02d}:{seconds:02d}"

    def _reset_rate(self, run: Run) -> None:
        self._counts.clear()
        self._counts.append((perf_counter(), run.samples))

    def _rate(self, run: Run) -> float | None:
        """Return samples per second over the last updates, excluding validations."""
        now = perf_counter()
        start, samples = self._counts[0]
        self._counts.append((now, run.samples))
        return (run.samples - samples) / (now - start) if now > start else None


def _can_draw() -> bool:
    """Return whether a bar can be redrawn in place."""
    return sys.stderr.isatty() or _has_widgets()


@cache
def _has_widgets() -> bool:
    """Return whether this is a notebook with ipywidgets, which rich uses to draw."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return type(shell).__name__ == "ZMQInteractiveShell" and find_spec("ipywidgets") is not None


def _make_bar() -> Any:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
    from rich.progress import Progress as Bar

    return Bar(
        TextColumn("{task.description}"),
        BarColumn(bar_width=30),
        MofNCompleteColumn(),
        TextColumn("{task.fields[text]}", style="cyan"),
        console=Console(file=sys.stderr),
        auto_refresh=False,
        transient=True,
        redirect_stdout=not _has_widgets(),  # a notebook shows printed lines anyway
        redirect_stderr=not _has_widgets(),
    )
