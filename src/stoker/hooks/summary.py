"""`Summary`: what came of a run, as a small table."""

from time import perf_counter

from stoker.events.console import number
from stoker.hooks.monitor import Monitor
from stoker.run import Run

_EPOCHS, _SECONDS = 5, 60.0


class Summary:
    """The last and best results of the epochs of one attempt, its time, and where the run is."""

    def __init__(self, run: Run) -> None:
        self._began = perf_counter()
        self._samples = run.samples
        self._epochs = 0
        self._last: dict[str, float] = {}
        self._best: dict[str, tuple[Monitor, int]] = {}

    def add(self, run: Run) -> None:
        """Take the results of an epoch."""
        self._epochs += 1
        self._last = dict(run.metrics)
        for name, value in run.metrics.items():
            if name not in self._best:
                try:
                    self._best[name] = (Monitor(name), run.epoch_in_hand)
                except ValueError:  # the name does not tell what is better
                    continue
            monitor, _ = self._best[name]
            if monitor.improves(value):
                self._best[name] = (monitor, run.epoch_in_hand)

    @property
    def wanted(self) -> bool:
        """Whether the run was long enough for a look back."""
        long = perf_counter() - self._began >= _SECONDS
        return self._epochs > 0 and (self._epochs >= _EPOCHS or long)

    def text(self, run: Run) -> str:
        """The table, and a line below it."""
        rows = [("", "last", "best", "")]
        for name, value in self._last.items():
            monitor, epoch = self._best.get(name, (None, 0))
            best = monitor.best if monitor is not None else None
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
