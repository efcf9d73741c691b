"""`Progress`: a progress bar on a terminal or in a notebook, plain lines elsewhere."""

import sys
from collections import deque
from time import perf_counter
from typing import Any

from stoker.core import dist
from stoker.core.timers import Pace
from stoker.events.writers.console import format_number
from stoker.hooks.base.hook import Hook, Priority
from stoker.hooks.summary import Summary
from stoker.hooks.terminal import Level, Screen, can_draw, format_clock, width_of
from stoker.hooks.write import epoch_text
from stoker.run import Run

_RESULTS_FIRST = 2
"""How many validation results are shown before the learning rate and the throughput."""
_LONGEST_PAUSE = 600.0
"""The most seconds between two lines in a log."""


class Progress(Hook):
    """Show a progress bar on rank 0, and print one line of results per epoch.

    The bar shows epoch, step, the estimated time left and the loss, and as far as the terminal is
    wide enough the latest validation results, the learning rate and samples per second. It follows
    a change of the width; a validation adds a second bar. Results that need more than a line are
    printed as a small table. A run of at least five epochs or one minute ends with a table of its
    last and best results, including those of earlier attempts.

    The bar needs a terminal, or a notebook with ipywidgets. Elsewhere, with ``TERM=dumb`` and if
    ``CI`` is set, plain lines are printed: one per epoch, and one every ``lines`` seconds in
    between, less often in a run of hours. Output goes to standard error; ``NO_COLOR`` is respected.

    Args:
        refresh: Seconds between two updates of the bar.
        lines: Least seconds between two lines if there is no bar.
    """

    observes = True
    priority = Priority.REPORT
    same_on_all_ranks = True

    def __init__(self, *, refresh: float = 0.25, lines: float = 30.0) -> None:
        self._refresh = refresh
        self._lines = lines
        self._screen: Screen | None = None
        self._levels: list[Level] = []
        self._level = Level("", None, 0.0)
        self._due = 0.0
        self._pace = Pace(0)
        self._started = 0.0
        self._widths: dict[str, int] = {}
        self._counts: deque[tuple[float, int]] = deque(maxlen=20)
        self._summary: Summary | None = None
        self._best: dict[str, tuple[float, int]] = {}

    # Training

    def before_train(self, run: Run) -> None:
        """Start estimating the remaining time."""
        self._pace, self._started = Pace(run.step), perf_counter()
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
            text = epoch_text(run, perf_counter() - started, width_of(sys.stderr))
            print(text, file=sys.stderr, flush=True)

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
        if self._screen is not None:
            self._screen.close()
            self._screen = None
        summary, self._summary = self._summary, None
        if summary is not None and summary.worthwhile and run.error is None and dist.is_main():
            print(summary.text(run, width_of(sys.stderr)), file=sys.stderr, flush=True)

    def state_dict(self) -> dict[str, Any]:
        """Return the best results so far, for the summary."""
        return {"best": {name: [*best] for name, best in self._best.items()}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the best results so far."""
        self._best.clear()  # in place, because the summary holds the same dict
        self._best.update((name, tuple(best)) for name, best in state.get("best", {}).items())

    # Drawing

    def _begin(self, label: str, total: int | None) -> None:
        self._level = Level(label, total, perf_counter())
        self._levels.append(self._level)
        if self._screen is None:
            wait = min(0.1, self._refresh) if can_draw() else self._lines
            self._due = self._level.started + wait

    def _end(self) -> None:
        self._levels.pop()
        if self._levels:
            self._level = self._levels[-1]

    def _show(self, run: Run | None = None) -> None:
        """Update the bar or print a line; pass the run to include the state of training."""
        if not dist.is_main():
            return
        level, now = self._level, perf_counter()
        draws = can_draw()
        if not draws and now < self._due:
            return
        if run is not None:
            self._describe(run, level)
        if draws:
            if self._screen is None:
                self._screen = Screen()
            self._screen.draw(self._levels)
            self._due = perf_counter() + self._refresh
        else:
            print(level.line(width_of(sys.stderr)), file=sys.stderr, flush=True)
            pause = min(_LONGEST_PAUSE, (now - self._started) / 100)
            self._due = now + max(self._lines, pause)

    def _describe(self, run: Run, level: Level) -> None:
        """Set what is shown of the state of training, the most important first."""
        with dist.alone():
            readings = run.events.readings()
        cells = {name: self._cell(name, value) for name, value in readings.items()}
        results = [name for name in cells if name.startswith("val/")]
        first, rest = results[:_RESULTS_FIRST], results[_RESULTS_FIRST:]
        rates = [name for name in cells if name.startswith("lr")]
        others = [n for n in cells if n.startswith("train/") and n != "train/loss"]
        level.required = [self._time(run), *(cells[n] for n in cells if n == "train/loss")]
        speed = [] if (rate := self._rate(run)) is None else [self._throughput(rate)]
        level.optional = [
            *(cells[name] for name in (*first, *rates)),
            *speed,
            *(cells[name] for name in (*rest, *others)),
        ]

    def _cell(self, name: str, value: float) -> str:
        number = format_number(name, value)
        return self._padded(name, f"{name.removeprefix('train/')} {number}")

    def _throughput(self, rate: float) -> str:
        return self._padded("samples/s", f"{format_number('', rate)} samples/s")

    def _padded(self, name: str, text: str) -> str:
        """Return a text in the largest width it has had, so that the bar does not jump."""
        width = self._widths[name] = max(len(text), self._widths.get(name, 0))
        return text.ljust(width)

    def _time(self, run: Run) -> str:
        """Return the time left, or the time that a run without a known end has taken."""
        if run.final_step is None:
            return self._padded("eta", f"{format_clock(perf_counter() - self._started)} elapsed")
        eta = self._pace.eta(run.step, run.final_step)
        return self._padded("eta", f"eta {format_clock(eta) if eta is not None else '-:--'}")

    def _reset_rate(self, run: Run) -> None:
        self._counts.clear()
        self._counts.append((perf_counter(), run.samples))

    def _rate(self, run: Run) -> float | None:
        """Return samples per second over the last updates, excluding validations."""
        now = perf_counter()
        start, samples = self._counts[0]
        self._counts.append((now, run.samples))
        return (run.samples - samples) / (now - start) if now > start else None
