"""`Summary`: what came of a run, as a small table."""

from time import perf_counter

from stoker.events.writers.console import number
from stoker.hooks.base.monitor import Monitor
from stoker.run import Run

_EPOCHS, _SECONDS = 5, 60.0


class Summary:
    """The last and best results of a run's epochs, the time of this attempt, and where the run is.

    Args:
        run: the run, before it trains.
        best: the best value of each result so far and its epoch; it is kept up to date.
    """

    def __init__(self, run: Run, best: dict[str, tuple[float, int]]) -> None:
        self._began = perf_counter()
        self._samples = run.samples
        self._epoch = 0
        self._last: dict[str, float] = {}
        self._best = best

    def add(self, run: Run) -> None:
        """Take the results of an epoch."""
        self._epoch = run.current_epoch
        self._last = dict(run.metrics)
        for name, value in run.metrics.items():
            try:
                monitor = Monitor(name)
            except ValueError:  # the name does not tell what is better
                continue
            before, _ = self._best.get(name, (None, 0))
            if monitor.better(value, before):
                self._best[name] = (value, self._epoch)

    @property
    def wanted(self) -> bool:
        """Whether the run was long enough for a look back."""
        long = perf_counter() - self._began >= _SECONDS
        return self._epoch > 0 and (self._epoch >= _EPOCHS or long)

    def text(self, run: Run) -> str:
        """The table, and a line below it."""
        rows = [("", "last", "best", "")]
        for name, value in self._last.items():
            best, epoch = self._best.get(name, (None, 0))
            shown = ("", "") if best is None else (number(name, best), f"epoch {epoch}")
            rows.append((name, number(name, value), *shown))
        widths = [max(len(row[column]) for row in rows) for column in range(3)]
        lines = [
            f"{name:<{widths[0]}}  {last:>{widths[1]}}  {best:>{widths[2]}}  {at}".rstrip()
            for name, last, best, at in rows
        ]
        return "\n".join([*lines, self._line(run)])

    def _line(self, run: Run) -> str:
        seconds = perf_counter() - self._began
        rate = (run.samples - self._samples) / seconds
        where = f"; in {run.dir}" if run.dir is not None and run.dir.exists() else ""
        return f"step {run.step}  {seconds:.1f} s  {rate:,.1f} samples/s{where}"
