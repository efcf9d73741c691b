"""`Write` and `LogFile`: pass events and log records of a run to writers and a file."""

import logging
import sys
from collections import Counter, deque
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter
from typing import Any

from stoker.core import dist
from stoker.core.errors import WriteError
from stoker.core.every import Every
from stoker.core.log import LogFile as LogFileHandler
from stoker.core.timers import Pace
from stoker.events import Cursor, RunProgress, Writer
from stoker.events.storage import Row
from stoker.events.writers.console import format_number, format_seconds
from stoker.hooks.base.hook import Hook, Priority
from stoker.hooks.base.periodic import Periodic
from stoker.hooks.terminal import results
from stoker.run import Run
from stoker.rundir.states import ending_of
from stoker.storage import explain_write_errors

_MOST_HELD = 10_000
"""Groups that a process of an elastic run holds, because rank 0 may not have written them."""

_Group = tuple[RunProgress, list[Row]]
"""Rows that are written together, with the progress that they are written with."""


class Write(Periodic):
    """Pass the contents of the event storage to writers.

        Write(events.JsonLines(), events.TensorBoard(), every=100)

    Each name that was put since the last write is written with its latest reading. Results of a
    validation or an epoch are written immediately.

    Args:
        writers: `stoker.events.JsonLines()`, `TensorBoard()`, `Csv()`, `Console()`, or your own.
        every: How often to write during training.
        optional: Skip writers that need a run folder if the run has none, instead of raising.
    """

    priority = Priority.REPORT
    same_on_all_ranks = True
    writes = True
    request = "log"

    def __init__(
        self, *writers: Writer, every: int | str | Every = "50st", optional: bool = False
    ) -> None:
        super().__init__(every)
        for writer in writers:
            if not isinstance(writer, Writer):
                raise TypeError(
                    f"{writer!r} is not a Writer, expected one such as events.JsonLines()"
                    f"{_made_of(writer)}"
                )
        if not writers:
            raise ValueError("Write needs at least one writer, such as Write(events.JsonLines())")
        self.writers = writers
        self.optional = optional
        self.name = f"Write({', '.join(type(writer).__name__ for writer in writers)})"
        self._cursor = Cursor()
        self._open: list[Writer] = []
        self._held: deque[_Group] = deque(maxlen=_MOST_HELD)
        self._pace = Pace(0)
        self._started_at = 0
        self._dir: Path | None = None
        self._failed = False
        self._cut_at: dict[Writer, tuple[int, int]] = {}  # length and step to return to
        self._has_taken_over = False

    def before_run(self, run: Run) -> None:
        """Check that every writer has somewhere to write."""
        self._dir, self._failed = run.dir, False
        for writer in self.writers:
            if self._lacks_path(writer) and not self.optional:
                kind = type(writer).__name__
                raise ValueError(
                    f"the {kind} writer has nowhere to write: pass run_dir to the Trainer or path "
                    f"to {kind}"
                )

    def before_train(self, run: Run) -> None:
        """Start estimating the remaining time."""
        super().before_train(run)
        self._pace = Pace(run.step)
        self._started_at = run.step

    def after_val(self, run: Run) -> None:
        """Write the results of a validation."""
        self.act(run)

    def after_epoch(self, run: Run) -> None:
        """Write the results of an epoch."""
        self.act(run)

    def after_train(self, run: Run) -> None:
        """Write the remaining events, even after a failure."""
        if run.step:
            self.act(run)

    def after_run(self, run: Run) -> None:
        """Close the writers."""
        opened, self._open, self._started_at = self._open, [], 0  # what this fit has written stays
        for writer in opened:
            with self._explain(writer):
                writer.close()

    def act(self, run: Run) -> None:
        """Write all events since the last write."""
        rows = run.events.unread(self._cursor)
        if rows and rows[-1].step > run.step:  # drop a step that failed
            rows = [row for row in rows if row.step <= run.step]
        groups = [(self._progress(run), rows)] if rows else []
        if dist.members() is not None:
            groups = self._not_written(groups)
        if not groups or self._failed or not dist.is_main():
            return
        if not self._open:
            self._open_writers()
        for progress, group in groups:
            for writer in self._open:
                try:
                    writer.write(group, progress)
                except OSError:
                    with self._explain(writer):
                        raise

    def _progress(self, run: Run) -> RunProgress:
        final = run.final_step
        eta = self._pace.eta(run.step, final) if run.task == "fit" else None
        return RunProgress(run.step, run.epoch, run.samples, final, eta)

    def _not_written(self, groups: list[_Group]) -> list[_Group]:
        """Return the rows that rank 0 of an elastic run has to write now.

        A process that takes over from another one leaves out what that one has written, and adds
        what it has not, with the progress of that time.
        """
        if not dist.is_main():
            self._held.extend(groups)
            return groups
        if dist.inherited() and not self._has_taken_over:
            held, self._has_taken_over = [*self._held], True
            self._held.clear()
            self._cut_at, self._started_at = {}, 0  # earlier attempts were cut already
            paths = [(one, self._path(one)) for one in self.writers if one.file is not None]
            for writer, path in paths:
                written = writer.written(path) if path is not None and path.exists() else None
                if written is not None:
                    return _without([*held, *groups], written)
        return groups

    @contextmanager
    def _explain(self, writer: Writer) -> Iterator[None]:
        """Name the file that cannot be written; after that, write nothing more."""
        try:
            with explain_write_errors(self._path(writer) or Path(type(writer).__name__)):
                yield
        except WriteError:
            self._failed = True
            raise

    def state_dict(self) -> dict[str, Any]:
        """Return the read position and the lengths of the files."""
        return {
            "serial": self._cursor.serial,
            "step": self._cursor.gauge_step,
            "lengths": {
                _key(writer): self._length(writer) for writer in self.writers if writer.file
            },
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the read position; files are cut to their saved lengths when they are opened."""
        self._cursor = Cursor(state["serial"], state["step"])
        lengths = state["lengths"]
        known = [writer for writer in self.writers if _key(writer) in lengths]
        self._cut_at = {writer: (lengths[_key(writer)], state["step"]) for writer in known}

    def _length(self, writer: Writer) -> int:
        """Return the length of a writer's file, after a cut that is still due."""
        path = self._path(writer)
        with self._explain(writer):
            length = writer.length(path) if path is not None else 0
        return min(length, self._cut_at[writer][0]) if writer in self._cut_at else length

    def _path(self, writer: Writer) -> Path | None:
        if writer.file is None or writer.path is not None:
            return writer.path
        return self._dir / writer.file if self._dir is not None else None

    def _lacks_path(self, writer: Writer) -> bool:
        return writer.file is not None and self._path(writer) is None

    def _open_writers(self) -> None:
        for writer in self.writers:
            if not self._lacks_path(writer):
                with self._explain(writer):
                    self._open_writer(writer)

    def _open_writer(self, writer: Writer) -> None:
        path = self._path(writer) if writer.file is not None else None
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            if writer in self._cut_at:
                writer.cut(path, *self._cut_at.pop(writer))
            elif writer.path is None and self._started_at and path.exists():
                writer.cut(path, writer.length(path, self._started_at), self._started_at)
            writer.open(path)
        self._open.append(writer)


def _without(groups: list[_Group], written: list[tuple[int, set[str]]]) -> list[_Group]:
    """Return the rows that are not written yet; two with the same step and names may be due."""
    counts = Counter((step, frozenset(names)) for step, names in written)

    def is_due(row: Row) -> bool:
        key = row.step, frozenset(row.scalars)
        due = not counts[key]
        counts[key] -= not due
        return due

    left = [(progress, [row for row in rows if is_due(row)]) for progress, rows in groups]
    return [(progress, rows) for progress, rows in left if rows]


def _key(writer: Writer) -> str:
    """Return the key of a file's length, which does not depend on the other writers."""
    return str(writer.path or writer.file)


class LogFile(Hook):
    """Write the log of a run to ``log.txt`` in its folder, with one line per epoch.

    Rank N > 0 writes ``log.txt.rankN``. A run without a folder writes nothing.
    """

    priority = Priority.REPORT
    same_on_all_ranks = True
    writes = True

    def __init__(self) -> None:
        self._handler: LogFileHandler | None = None
        self._started = 0.0

    def before_run(self, run: Run) -> None:
        """Add a handler to Stoker's logger."""
        if run.dir is not None and self._handler is None:
            self._handler = LogFileHandler(run.dir, lambda: run.step > 0)
            logging.getLogger("stoker").addHandler(self._handler)

    def before_epoch(self, run: Run) -> None:
        """Start timing the epoch."""
        self._started = perf_counter()

    def after_epoch(self, run: Run) -> None:
        """Write a line with the results of the epoch."""
        self._write(logging.INFO, epoch_line(run, perf_counter() - self._started))

    def on_exception(self, run: Run) -> None:
        """Write the error with its traceback."""
        if ending_of(run.stop_reason, run.error).state == "failed":
            what = "the run" if run.task == "fit" else run.task
            self._write(logging.ERROR, f"{what} failed at {run.where()}", run.error)

    def after_run(self, run: Run) -> None:
        """Write why the run ended and remove the handler."""
        if self._handler is None:
            return
        state, why = ending_of(run.stop_reason, run.error)
        if run.task == "fit" and state != "failed":
            self._write(logging.INFO, f"{why or state} (step {run.step})")
            self._handler.open()
        logging.getLogger("stoker").removeHandler(self._handler)
        self._handler.close()
        self._handler = None

    def _write(self, level: int, text: str, error: BaseException | None = None) -> None:
        """Write to the file only, not to the terminal."""
        if self._handler is not None:
            self._handler.write(level, text, error)


def epoch_line(run: Run, seconds: float) -> str:
    """Return one line of results: ``epoch 2/5  step 30  train/loss 0.31  val/loss 0.4  1.2 s``."""
    return epoch_text(run, seconds, sys.maxsize)


def epoch_text(run: Run, seconds: float, width: int) -> str:
    """Return the results of an epoch as a line, or as a small table if it is wider than that."""
    limit = f"/{run.max_epochs}" if run.max_epochs is not None else ""
    cells = [(name, format_number(name, value)) for name, value in run.metrics.items()]
    head = f"epoch {run.current_epoch}{limit}  step {run.step}"
    return results(head, cells, format_seconds(seconds), width)


def _made_of(value: Any) -> str:
    """Return the call that was probably meant, if a class was given instead of an object."""
    is_class = isinstance(value, type) and issubclass(value, Writer)
    return f"; did you mean {value.__name__}()?" if is_class else ""
