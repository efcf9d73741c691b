"""`LogFile`: the log of a run in its folder."""

import logging
from datetime import timedelta
from time import perf_counter

from stoker.core.log import LogFile as LogFileHandler
from stoker.events.writers.console import format_number
from stoker.hooks.base.hook import Hook, Priority
from stoker.run import Run


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
        self._write(logging.ERROR, f"the run failed at {run.where()}", run.error)

    def after_run(self, run: Run) -> None:
        """Write why the run ended and remove the handler."""
        if self._handler is None:
            return
        if run.task == "fit" and run.error is None:
            self._write(logging.INFO, f"{run.stop_reason or 'finished'} (step {run.step})")
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
    limit = f"/{run.max_epochs}" if run.max_epochs is not None else ""
    results = [f"{name} {format_number(name, value)}" for name, value in run.metrics.items()]
    duration = f"{seconds:.1f} s" if seconds < 60 else str(timedelta(seconds=round(seconds)))
    return "  ".join([f"epoch {run.current_epoch}{limit}", f"step {run.step}", *results, duration])
