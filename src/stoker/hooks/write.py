"""Hooks that carry numbers and words out of a run."""

import logging
from datetime import timedelta
from pathlib import Path
from time import perf_counter
from typing import Any

from stoker.core import dist
from stoker.core.every import Every
from stoker.core.log import LogFile as LogFileHandler
from stoker.core.timers import Pace
from stoker.events import Cursor, Where, Writer
from stoker.events.writers.console import number
from stoker.hooks.base.hook import Hook, Priority
from stoker.hooks.base.periodic import Periodic
from stoker.run import Run


class Write(Periodic):
    """Carries what the event storage holds to writers, each ``every`` and whenever results come.

    A name that was put since the last time reaches the writers with its latest reading; results of
    an evaluation do so at once, whatever the period.

    Args:
        writers: `stoker.events.JsonLines()`, `TensorBoard()`, `Csv()`, `Console()`, or your own.
        every: how often while training.
        optional: for a run without a folder, leave out writers that need one instead of failing.
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
                raise TypeError(f"{writer!r} is no Writer, expected one such as events.JsonLines()")
        if not writers:
            raise ValueError("Write was given no writer: Write(events.JsonLines()) is a start")
        self.writers = writers
        self.optional = optional
        self.name = f"Write({', '.join(type(writer).__name__ for writer in writers)})"
        self._cursor = Cursor()
        self._open: list[Writer] = []
        self._pace = Pace(0)
        self._begun_at = 0
        self._dir: Path | None = None
        self._cut_at: dict[Writer, tuple[int, int]] = {}  # length and step to go back to

    def before_run(self, run: Run) -> None:
        """Refuse a run that leaves no place to write to."""
        self._dir = run.dir
        for writer in self.writers:
            if self._has_no_place(writer, run) and not self.optional:
                kind = type(writer).__name__
                raise ValueError(
                    f"the {kind} writer has nowhere to write: give the Trainer a run_dir, "
                    f"or {kind} a path"
                )

    def before_train(self, run: Run) -> None:
        """Times that are left are estimated from here on."""
        super().before_train(run)
        self._pace = Pace(run.step)
        self._begun_at = run.step

    def after_val(self, run: Run) -> None:
        """Write the results of a validation."""
        self.act(run)

    def after_epoch(self, run: Run) -> None:
        """Write what the end of an epoch has brought."""
        self.act(run)

    def after_train(self, run: Run) -> None:
        """Write what is left, also of a failed run."""
        if run.step:
            self.act(run)

    def after_run(self, run: Run) -> None:
        """Close the writers."""
        for writer in self._open:
            writer.close()
        self._open = []

    def act(self, run: Run) -> None:
        """Carry out what came since the last time."""
        rows = run.events.unread(self._cursor)
        rows = [row for row in rows if row.step <= run.step]  # a step that failed is none
        if not rows or not dist.is_main():
            return
        for writer in self.writers:
            if writer not in self._open and not self._has_no_place(writer, run):
                self._open_one(writer, run)
        eta = self._pace.eta(run.step, run.total_steps) if run.task == "fit" else None
        where = Where(run.step, run.epoch, run.samples, run.total_steps, eta)
        for writer in self._open:
            writer.write(rows, where)

    def state_dict(self) -> dict[str, Any]:
        """How far it has read, and how long the files are."""
        return {
            "serial": self._cursor.serial,
            "step": self._cursor.gauge_step,
            "lengths": {
                _key(writer): self._length(writer) for writer in self.writers if writer.file
            },
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take back what `state_dict` gave; what was written since will be cut off."""
        self._cursor = Cursor(state["serial"], state["step"])
        lengths = state["lengths"]
        known = [writer for writer in self.writers if _key(writer) in lengths]
        self._cut_at = {writer: (lengths[_key(writer)], state["step"]) for writer in known}

    def _length(self, writer: Writer) -> int:
        """How long the file of a writer is, or will be when it is cut."""
        path = self._path(writer)
        length = writer.length(path) if path is not None else 0
        return min(length, self._cut_at[writer][0]) if writer in self._cut_at else length

    def _path(self, writer: Writer) -> Path | None:
        if writer.file is None or writer.path is not None:
            return writer.path
        return self._dir / writer.file if self._dir is not None else None

    def _open_one(self, writer: Writer, run: Run) -> None:
        path = self._path(writer) if writer.file is not None else None
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            if writer in self._cut_at:
                writer.cut(path, *self._cut_at.pop(writer))
            elif writer.path is None and self._begun_at and path.exists():
                writer.cut(path, writer.length(path, self._begun_at), self._begun_at)
            writer.open(path)
        self._open.append(writer)

    def _has_no_place(self, writer: Writer, run: Run) -> bool:
        return writer.file is not None and writer.path is None and run.dir is None


def _key(writer: Writer) -> str:
    """What the length of a file is kept under: other writers may stand beside it next time."""
    return str(writer.path or writer.file)


class LogFile(Hook):
    """Keeps what is said of a run in ``log.txt`` of its folder, with a line per epoch.

    Rank N writes ``log.txt.rankN``. Without a run folder it does nothing.
    """

    priority = Priority.REPORT
    same_on_all_ranks = True
    writes = True

    def __init__(self) -> None:
        self._handler: LogFileHandler | None = None
        self._began = 0.0

    def before_run(self, run: Run) -> None:
        """Listen to the logger."""
        if run.dir is not None and self._handler is None:
            self._handler = LogFileHandler(run.dir, lambda: run.step > 0)
            logging.getLogger("stoker").addHandler(self._handler)

    def before_epoch(self, run: Run) -> None:
        """Measure the epoch."""
        self._began = perf_counter()

    def after_epoch(self, run: Run) -> None:
        """A line with the results so far."""
        self._note(logging.INFO, epoch_line(run, perf_counter() - self._began))

    def on_exception(self, run: Run) -> None:
        """The error with its traceback; the terminal shows it anyway."""
        self._note(logging.ERROR, f"the run failed at {run.where()}", run.error)

    def after_run(self, run: Run) -> None:
        """The last line: why the run ended."""
        if self._handler is None:
            return
        if run.task == "fit" and run.error is None:
            self._note(logging.INFO, f"{run.stop_reason or 'finished'} (step {run.step})")
            self._handler.open()
        logging.getLogger("stoker").removeHandler(self._handler)
        self._handler.close()
        self._handler = None

    def _note(self, level: int, text: str, error: BaseException | None = None) -> None:
        """For the file alone."""
        if self._handler is not None:
            self._handler.write(level, text, error)


def epoch_line(run: Run, seconds: float) -> str:
    """The results of an epoch in one line: ``epoch 2/5  train/loss 0.31  val/accuracy 0.97``."""
    of = f"/{run.max_epochs}" if run.max_epochs is not None else ""
    shown = [f"{name} {number(name, value)}" for name, value in run.metrics.items()]
    took = f"{seconds:.1f} s" if seconds < 60 else str(timedelta(seconds=round(seconds)))
    return "  ".join([f"epoch {run.current_epoch}{of}", f"step {run.step}", *shown, took])
