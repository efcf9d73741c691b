"""`Summary`: the table of results that `Progress` prints at the end of a run."""

from time import perf_counter

from stoker.events.writers.console import format_number, format_seconds, format_table
from stoker.hooks.base.monitor import Monitor
from stoker.run import Run

_MIN_EPOCHS, _MIN_SECONDS = 5, 60.0


class Summary:
    """The last and best results of a run, the duration of this attempt, and the run folder.

    Args:
        run: The run, before it trains.
        best: The best value of each result so far, and its epoch. Updated in place.
    """

    def __init__(self, run: Run, best: dict[str, tuple[float, int]]) -> None:
        self._started = perf_counter()
        self._samples = run.samples
        self._epoch = 0
        self._last: dict[str, float] = {}
        self._best = best

    def add(self, run: Run) -> None:
        """Add the results of an epoch."""
        self._epoch = run.current_epoch
        self._last |= run.metrics  # an epoch that was cut short has no validation
        for name, value in run.metrics.items():
            try:
                monitor = Monitor(name)
            except ValueError:  # the name does not reveal which direction is better
                continue
            best, _ = self._best.get(name, (None, 0))
            if monitor.better(value, best):
                self._best[name] = (value, self._epoch)

    @property
    def worthwhile(self) -> bool:
        """Whether the run was long enough for a summary."""
        is_long = perf_counter() - self._started >= _MIN_SECONDS
        return self._epoch > 0 and (self._epoch >= _MIN_EPOCHS or is_long)

    def text(self, run: Run, width: int) -> str:
        """Return the table and a closing line; a name that is too long has a line of its own."""
        rows: list[tuple[str, ...]] = [("", "last", "best", "")]
        for name, value in self._last.items():
            best, epoch = self._best.get(name, (None, 0))
            cells = ("", "") if best is None else (format_number(name, best), f"epoch {epoch}")
            rows.append((name, format_number(name, value), *cells))
        return f"{_folded(rows, width)}\n{self._closing_line(run)}"

    def _closing_line(self, run: Run) -> str:
        seconds = perf_counter() - self._started
        rate = (run.samples - self._samples) / seconds
        counts = f"step {run.step}  {format_seconds(seconds)}  {rate:,.1f} samples/s"
        return f"{counts}; in {run.dir}" if run.dir is not None and run.dir.exists() else counts


def _folded(rows: list[tuple[str, ...]], width: int) -> str:
    """Return a table in which a name that leaves no room for its numbers has a line of its own."""
    numbers = max(
        map(len, format_table([("", *row[1:]) for row in rows], left=(0, 3)).splitlines())
    )
    names = ["" if len(row[0]) + numbers > width else row[0] for row in rows]
    table = format_table([(n, *row[1:]) for n, row in zip(names, rows, strict=True)], left=(0, 3))
    lines = []
    for name, row, line in zip(names, rows, table.splitlines(), strict=True):
        lines += [line] if name == row[0] else [row[0], line]
    return "\n".join(lines)
