"""A progress bar for people; plain lines where there is no terminal."""

import sys
from time import perf_counter
from typing import Any

from stoker import dist
from stoker.events.console import number
from stoker.hooks.hook import Hook, Priority
from stoker.hooks.write import epoch_line
from stoker.run import Run
from stoker.timing import Pace


class Progress(Hook):
    """A live bar on one process, with a line of results per epoch above it.

    Off a terminal there are only lines: one per epoch, and one each half minute within it. Output
    goes to standard error; ``NO_COLOR`` is honoured.

    Args:
        refresh: seconds between two drawings of the bar.
        lines: seconds between two lines where there is no terminal.
    """

    priority = Priority.REPORT
    alike = True

    def __init__(self, *, refresh: float = 0.25, lines: float = 30.0) -> None:
        self._refresh = refresh
        self._lines = lines
        self._bar: Any = None
        self._task: Any = None
        self._due = 0.0
        self._began = 0.0
        self._pace = Pace(0)
        self._label = ""
        self._total: int | None = None
        self._done = 0

    # Training

    def before_train(self, run: Run) -> None:
        """Begin to measure the pace."""
        self._pace = Pace(run.step)

    def before_epoch(self, run: Run) -> None:
        """A bar for the epoch."""
        of = f"/{run.max_epochs}" if run.max_epochs is not None else ""
        steps = run.steps_per_epoch
        if run.max_steps is not None:
            left = run.max_steps - run.step
            steps = left if steps is None else min(steps, left)
        self._begin(f"epoch {run.epoch_in_hand}{of}", steps)

    def after_step(self, run: Run) -> None:
        """Move the bar, now and then."""
        self._done += 1
        if perf_counter() >= self._due:
            self._show(self._training_text(run))

    def after_train_epoch(self, run: Run) -> None:
        """The bar is full, if the epoch was long enough for one."""
        if self._bar is not None:
            self._show(self._training_text(run))
        self._close()

    def after_epoch(self, run: Run) -> None:
        """A line with the results."""
        if dist.is_main():
            print(epoch_line(run, perf_counter() - self._began), file=sys.stderr, flush=True)

    # Validation and prediction

    def before_val(self, run: Run) -> None:
        """A bar for the validation, in place of that of training."""
        self._saved = (self._label, self._total, self._done, self._began)
        self._close()
        self._begin(run.val_name, run.feed.batches if run.feed is not None else None)

    def after_val_step(self, run: Run) -> None:
        """Move the bar, now and then."""
        self._done += 1
        if perf_counter() >= self._due:
            self._show("")

    def after_val(self, run: Run) -> None:
        """The bar is full; that of training comes back with its next drawing."""
        if self._bar is not None:
            self._show("")
        self._close()
        self._label, self._total, self._done, self._began = self._saved

    def before_predict(self, run: Run) -> None:
        """A bar for the prediction."""
        self._begin("predict", run.feed.batches if run.feed is not None else None)

    def after_predict_step(self, run: Run) -> None:
        """Move the bar, now and then."""
        self.after_val_step(run)

    def after_predict(self, run: Run) -> None:
        """The bar is full."""
        if self._bar is not None:
            self._show("")
        self._close()

    def after_run(self, run: Run) -> None:
        """Leave the terminal as it was, whatever happened."""
        self._close()

    # Drawing

    def _begin(self, label: str, total: int | None) -> None:
        self._label, self._total, self._done = label, total, 0
        self._began = perf_counter()
        self._due = self._began + (min(0.1, self._refresh) if _on_terminal() else self._lines)

    def _show(self, text: str) -> None:
        if not dist.is_main():
            return
        if _on_terminal():
            self._draw(text)
            self._due = perf_counter() + self._refresh
        elif perf_counter() >= self._due:
            of = f"/{self._total}" if self._total else ""
            print(f"{self._label}  {self._done}{of}  {text}".rstrip(), file=sys.stderr, flush=True)
            self._due = perf_counter() + self._lines

    def _draw(self, text: str) -> None:
        if self._bar is None:
            self._bar = _make_bar()
            self._task = self._bar.add_task(self._label, total=self._total, text="")
            self._bar.start()
        self._bar.update(self._task, completed=self._done, text=text)
        self._bar.refresh()

    def _close(self) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def _training_text(self, run: Run) -> str:
        with dist.alone():
            shown = run.events.readings()
        parts = []
        for name, value in shown.items():
            if name.startswith(("train/", "lr")):
                parts.append(f"{name.removeprefix('train/')} {number(name, value)}")
        eta = self._pace.eta(run.step, run.total_steps)
        if eta is not None:
            minutes, seconds = divmod(round(eta), 60)
            parts.append(f"eta {minutes // 60}:{minutes % 60:02d}:{seconds:02d}")
        return "  ".join(parts)


def _on_terminal() -> bool:
    return sys.stderr.isatty()


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
    )
