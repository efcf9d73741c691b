"""A progress bar for people; plain lines where there is no terminal."""

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
from stoker.events.writers.console import number
from stoker.hooks.base.hook import Hook, Priority
from stoker.hooks.summary import Summary
from stoker.hooks.write import epoch_line
from stoker.run import Run

_RESULTS = 2
"""How many results of validation a bar has room for."""


@dataclass(slots=True, eq=False)
class _Level:
    """A bar, or one within another: what it counts, and how far it is."""

    label: str
    total: int | None
    began: float
    done: int = 0
    text: str = ""


class Progress(Hook):
    """A live bar on one process, with a line of results per epoch above it.

    The bar has the loss, the last results of validation, the learning rate, samples per second and
    the time that is left; a validation has a bar of its own below it. A run of five epochs or a
    minute ends with a table of its last and best results, over all attempts. Off a terminal there
    are only lines: one per epoch, and one each half minute within it; a notebook that has
    ipywidgets has a bar, too. Output goes to standard error; ``NO_COLOR`` is honoured.

    Args:
        refresh: seconds between two drawings of the bar.
        lines: seconds between two lines where there is no terminal.
    """

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
        self._marks: deque[tuple[float, int]] = deque(maxlen=20)
        self._summary: Summary | None = None
        self._best: dict[str, tuple[float, int]] = {}

    # Training

    def before_train(self, run: Run) -> None:
        """Begin to measure the pace."""
        self._pace = Pace(run.step)
        if run.step == 0:
            self._best.clear()
        self._summary = Summary(run, self._best)

    def before_epoch(self, run: Run) -> None:
        """A bar for the epoch."""
        of = f"/{run.max_epochs}" if run.max_epochs is not None else ""
        steps, done = run.steps_per_epoch, run.feeder.first_step if run.feeder is not None else 0
        if run.max_steps is not None:
            last = done + run.max_steps - run.step
            steps = last if steps is None else min(steps, last)
        self._begin(f"epoch {run.current_epoch}{of}", steps)
        self._level.done = done
        self._begin_rate(run)

    def after_step(self, run: Run) -> None:
        """Move the bar, now and then."""
        self._level.done += 1
        if perf_counter() >= self._due:
            self._show(run)

    def after_epoch(self, run: Run) -> None:
        """A line with the results."""
        began = self._level.began
        self._end()
        if self._summary is not None:
            self._summary.add(run)
        if dist.is_main():
            print(epoch_line(run, perf_counter() - began), file=sys.stderr, flush=True)

    # Validation and prediction

    def before_val(self, run: Run) -> None:
        """A bar for the validation, below that of training."""
        self._begin(run.val_name, run.feeder.batches if run.feeder is not None else None)

    def after_val_step(self, run: Run) -> None:
        """Move the bar, now and then."""
        self._level.done += 1
        if perf_counter() >= self._due:
            self._show()

    def after_val(self, run: Run) -> None:
        """The bar goes."""
        self._end()
        self._begin_rate(run)

    def before_predict(self, run: Run) -> None:
        """A bar for the prediction."""
        self._begin("predict", run.feeder.batches if run.feeder is not None else None)

    def after_predict_step(self, run: Run) -> None:
        """Move the bar, now and then."""
        self.after_val_step(run)

    def after_predict(self, run: Run) -> None:
        """The bar goes."""
        self._end()

    def after_run(self, run: Run) -> None:
        """Leave the terminal as it was, whatever happened; say what came of it."""
        self._levels.clear()
        if self._bar is not None:
            self._bar.stop()
            self._bar = None
        summary, self._summary = self._summary, None
        if summary is not None and summary.wanted and run.error is None and dist.is_main():
            print(summary.text(run), file=sys.stderr, flush=True)

    def state_dict(self) -> dict[str, Any]:
        """The best results so far, for the table at the end."""
        return {"best": {name: [*best] for name, best in self._best.items()}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take back what `state_dict` gave."""
        self._best.clear()  # the summary of a run that goes on has it, too
        self._best.update((name, tuple(best)) for name, best in state.get("best", {}).items())

    # Drawing

    def _begin(self, label: str, total: int | None) -> None:
        self._level = _Level(label, total, perf_counter())
        self._levels.append(self._level)
        if self._bar is None:
            wait = min(0.1, self._refresh) if _can_draw() else self._lines
            self._due = self._level.began + wait

    def _end(self) -> None:
        self._levels.pop()
        if self._levels:
            self._level = self._levels[-1]
        if self._bar is not None:
            for task in self._bar.tasks[len(self._levels) :]:
                task.visible = False

    def _show(self, run: Run | None = None) -> None:
        """Draw, or print a line; with a run, what training has to say is in it."""
        if not dist.is_main():
            return
        level, now = self._level, perf_counter()
        if _can_draw():
            level.text = "  ".join(self._training(run)) if run is not None else ""
            self._draw()
            self._due = perf_counter() + self._refresh
        elif now >= self._due:
            of = f"/{level.total}" if level.total else ""
            said = self._training(run) if run is not None else ()
            print("  ".join([level.label, f"{level.done}{of}", *said]), file=sys.stderr, flush=True)
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

    def _training(self, run: Run) -> Iterator[str]:
        """What is said of training, beside how far it is."""
        with dist.alone():
            shown = run.events.readings()
        results = [name for name in shown if name.startswith("val/")][-_RESULTS:]
        for name, value in shown.items():
            if name.startswith(("train/", "lr")) or name in results:
                yield f"{name.removeprefix('train/')} {number(name, value)}"
        rate = self._rate(run)
        if rate is not None:
            yield f"{number('', rate)} samples/s"
        eta = self._pace.eta(run.step, run.total_steps)
        if eta is not None:
            minutes, seconds = divmod(round(eta), 60)
            yield f"eta {minutes // 60}:{minutes % 60:02d}:{seconds:02d}"

    def _begin_rate(self, run: Run) -> None:
        self._marks.clear()
        self._marks.append((perf_counter(), run.samples))

    def _rate(self, run: Run) -> float | None:
        """Samples per second over the last drawings, validations left out."""
        now = perf_counter()
        began, samples = self._marks[0]
        self._marks.append((now, run.samples))
        return (run.samples - samples) / (now - began) if now > began else None


def _can_draw() -> bool:
    """Whether a bar can be drawn over itself."""
    return sys.stderr.isatty() or _has_widgets()


@cache
def _has_widgets() -> bool:
    """Whether this is a notebook with ipywidgets, which rich draws on there."""
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
        redirect_stdout=not _has_widgets(),  # a notebook shows lines beside the bar by itself
        redirect_stderr=not _has_widgets(),
    )
