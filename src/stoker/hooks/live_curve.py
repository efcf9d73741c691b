"""`LiveCurve`: curves that grow during training, in a notebook."""

import sys
from importlib import import_module
from importlib.util import find_spec
from time import perf_counter
from typing import Any

from stoker.core import dist
from stoker.events.notebook import charts_html
from stoker.hooks.base.hook import Hook, Priority
from stoker.run import Run


class LiveCurve(Hook):
    """Draw the curves of losses and results while a notebook cell trains.

    `hooks.default` adds it in a notebook that has ipywidgets. Elsewhere it does nothing.

    Args:
        refresh: Seconds between two points of the training results.
    """

    observes = True
    priority = Priority.REPORT
    same_on_all_ranks = True

    def __init__(self, *, refresh: float = 2.0) -> None:
        self._refresh = refresh
        self._series: dict[str, list[tuple[float, float]]] = {}
        self._within_epoch: dict[str, list[tuple[float, float]]] = {}
        self._widget: Any = None
        self._due = float("inf")

    def before_train(self, run: Run) -> None:
        """Show the curves so far, which are empty in a new run."""
        self._within_epoch = {}
        if run.step == 0:
            self._series = {}
        if dist.is_main() and has_widgets():
            self._widget = import_module("ipywidgets").HTML(charts_html(self._series))
            import_module("IPython.display").display(self._widget)
            self._due = perf_counter() + self._refresh

    def after_step(self, run: Run) -> None:
        """Add a point of the training results when it is time."""
        if perf_counter() >= self._due:
            with dist.alone():
                readings = run.events.readings()
            readings = {n: v for n, v in readings.items() if n.startswith("train/")}
            self._add(run, readings, self._within_epoch)

    def after_val(self, run: Run) -> None:
        """Add the results of the validation."""
        prefix = f"{run.val_name}/"
        if run.task == "fit":
            values = {n: v for n, v in run.metrics.items() if n.startswith(prefix)}
            self._add(run, values, self._series)

    def after_train_epoch(self, run: Run) -> None:
        """Replace the points within the epoch by its results."""
        self._within_epoch = {}
        values = {n: v for n, v in run.metrics.items() if n.startswith("train/")}
        self._add(run, values, self._series)

    def after_train(self, run: Run) -> None:
        """Leave the curves as they are."""
        self._widget, self._due = None, float("inf")

    def state_dict(self) -> dict[str, Any]:
        """Return the results so far, without points whose steps depend on the clock."""
        return {"series": {name: [list(p) for p in self._series[name]] for name in self._series}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the points."""
        self._series = {name: [(x, y) for x, y in all_] for name, all_ in state["series"].items()}

    def _add(
        self, run: Run, values: dict[str, float], to: dict[str, list[tuple[float, float]]]
    ) -> None:
        for name, value in values.items():
            to.setdefault(name, []).append((run.step, value))
        if self._widget is not None:
            names = [*self._series, *(n for n in self._within_epoch if n not in self._series)]
            both = {n: [*self._series.get(n, ()), *self._within_epoch.get(n, ())] for n in names}
            self._widget.value = charts_html(both)
            self._due = perf_counter() + self._refresh


def has_widgets() -> bool:
    """Return whether this is a notebook with ipywidgets."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return type(shell).__name__ == "ZMQInteractiveShell" and find_spec("ipywidgets") is not None
