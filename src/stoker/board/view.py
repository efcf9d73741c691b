"""`RunView`: what the page shows of one run."""

import math
from typing import Any

from stoker.hooks.base.monitor import best_index
from stoker.rundir import files
from stoker.rundir.metrics_index import Curves
from stoker.rundir.provenance import plain_value
from stoker.rundir.reader import RunReader, flat_values, monitored_result
from stoker.rundir.status import UNREADABLE, Status, lease_file
from stoker.rundir.timeline import timeline_of

_WATCHED = (
    *(files.METRICS, files.LOG, files.LEDGER, files.CONFIG),
    *(files.ENVIRONMENT, files.COST, files.MEDIA_INDEX),
)
_MOST_COSTS = 40


class RunView:
    """One run: its metrics, its state, and its other files.

    Args:
        id: the name of the run on the page.
        reader: reads its folder.
    """

    def __init__(self, id: str, reader: RunReader) -> None:
        self.id, self.reader, self.metrics = id, reader, reader.metrics
        self.version = 0
        self.config: dict[str, Any] = {}
        self.failure: str | None = None
        self._status: Status | None = None
        self._seen: Any = None
        self._curves = Curves(self.metrics.columns)
        self._best: tuple[Any, dict[str, Any] | None] = (None, None)

    def refresh(self, seconds: float = 0.1) -> None:
        """Read what is new for about ``seconds``; `version` grows if anything changed.

        A failure is shown with this run and leaves the others alone.
        """
        try:
            self._refresh(seconds)
            self.failure = None
        except Exception as error:
            failure = f"the run cannot be read: {type(error).__name__}"
            self.version += failure != self.failure
            self.failure = failure
            self._status = self._status or UNREADABLE
            self.metrics.fraction_read = 1.0

    def _refresh(self, seconds: float) -> None:
        folder = self.reader.folder
        found = [*folder.stats(*_WATCHED), lease_file(folder)]
        seen = [None if one is None else (one.st_size, one.st_mtime_ns) for one in found]
        changed = seen != self._seen
        if changed or not self.metrics.complete:
            changed = self.metrics.refresh(seconds) or changed
        if changed:
            self._seen = seen
            self.config = self.reader.config()
        if changed or (self._status is not None and self._status.state == "running"):
            status = self.reader.status(self.config)
            changed = changed or self._status is None or status.state != self._status.state
            self._status = status
        self.version += changed

    @property
    def status(self) -> Status:
        """The state and the progress of the run."""
        if self._status is None:
            self.refresh(0.0)
        assert self._status is not None
        return self._status

    @property
    def curves(self) -> Curves:
        """The curves of the run."""
        if not self._curves.is_current(self.metrics.columns):
            self._curves = Curves(self.metrics.columns)
        return self._curves

    def summary(self) -> dict[str, Any]:
        """Return the line of the run in the list of runs."""
        columns = self.metrics.columns
        return {
            "id": self.id,
            "version": self.version,
            "status": self.status.plain(),
            "best": self.best(),
            "names": list(columns.values),
            "rows": len(columns),
            "read": self.metrics.fraction_read,
            "faults": [self.failure] if self.failure else self.reader.faults,
        }

    def details(self) -> dict[str, Any]:
        """Return what the page of the run shows, apart from its curves and its log."""
        about = {
            "config": self.config,
            "env": flat_values(self.reader.environment()),
            "cost": cost_groups(self.reader.cost()),
            "checkpoints": self.checkpoints(),
            "media": self.reader.media(),
            "last": self.last(),
        }
        return self.summary() | about

    def checkpoints(self) -> list[dict[str, Any]]:
        """Return the checkpoints of the run, newest first."""
        return [vars(one) | {"state": one.state} for one in self.reader.checkpoints()]

    def results(self) -> dict[str, Any]:
        """Return config and results of the run, for a table of runs."""
        return {
            "id": self.id,
            "status": self.status.plain(),
            "config": self.config,
            "last": self.last(),
            "best": self.best(),
        }

    def timeline(self) -> dict[str, Any]:
        """Return goodput, attempts and events of the run."""
        return timeline_of(self.reader.attempts(), self.status.state)

    def last(self) -> dict[str, Any]:
        """Return the latest value of every series; one that is not finite is a text."""
        values = self.metrics.columns.values
        return {name: plain_value(float(v.view[-1])) for name, v in [*values.items()] if len(v)}

    def best_results(self) -> dict[str, dict[str, Any]]:
        """Return the best value of every series of which it is known whether less is better."""
        with self.metrics.lock:
            found = {name: self._best_of(name) for name in [*self.metrics.columns.values]}
        return {name: best for name, best in found.items() if best is not None}

    def best(self) -> dict[str, Any] | None:
        """Return the best value of the monitored result, or else of validation, with its step."""
        columns = self.metrics.columns
        key = (columns, len(columns), len(columns.values), self.version)
        if self._best[0] != key:
            with self.metrics.lock:
                self._best = key, self._find_best()
        return self._best[1]

    def _find_best(self) -> dict[str, Any] | None:
        columns = self.metrics.columns
        wanted, _ = monitored_result(self.config)
        ranked = sorted(((_rank(name, wanted), name) for name in [*columns.values]), reverse=True)
        found = (self._best_of(name) for rank, name in ranked if rank)
        return next((best for best in found if best is not None), None)

    def _best_of(self, name: str) -> dict[str, Any] | None:
        columns = self.metrics.columns
        wanted, mode = monitored_result(self.config)
        values = columns.values[name].view
        found = best_index(name, values, mode if name == wanted else None)
        if found is None:
            return None
        at, is_better = found
        step = int(columns.head["step"].view[columns.rows[name].view[at]])
        return {"name": name, "value": float(values[at]), "step": step, "mode": is_better}


def _rank(name: str, wanted: str) -> int:
    """Return how important a result is: first the one the config names, then validation."""
    if name == wanted:
        return 4
    if name.startswith("val/"):
        return 2 if name.endswith("loss") else 3
    return 1 if name == "train/loss" else 0


def cost_groups(tree: Any) -> dict[str, list[tuple[str, float]]]:
    """Return the groups of seconds in a ``cost.json`` by name, each with the largest first.

    A group is an object of numbers, or of objects with ``seconds``. A list of rows with ``hook``
    and ``seconds`` is summed up per hook, and divided by ``steps`` if that is given.
    """
    if not isinstance(tree, dict):
        return {}
    groups: dict[str, dict[str, float]] = {}
    for title, inner in tree.items():
        if isinstance(inner, dict):
            found = {str(name): _seconds(value) for name, value in inner.items()}
            groups[str(title)] = {name: value for name, value in found.items() if value is not None}
        elif isinstance(inner, list):
            groups.setdefault("hooks", {}).update(_by_hook(inner, tree.get("steps")))
    return {
        title[:100]: sorted(((n[:100], s) for n, s in parts.items()), key=lambda p: -p[1])[
            :_MOST_COSTS
        ]
        for title, parts in list(groups.items())[:_MOST_COSTS]
        if parts
    }


def _by_hook(rows: list[Any], steps: Any) -> dict[str, float]:
    sums: dict[str, float] = {}
    for row in rows:
        # a row with a part, such as one metric, is included in another row of the same hook
        if isinstance(row, dict) and isinstance(row.get("hook"), str) and not row.get("part"):
            sums[row["hook"]] = sums.get(row["hook"], 0.0) + (_seconds(row) or 0.0)
    count = steps if type(steps) is int and 0 < steps < 2**53 else 1
    return {name: total / count for name, total in sums.items()}


def _seconds(value: Any) -> float | None:
    if isinstance(value, dict):
        value = value.get("seconds")
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number and abs(value) < 1e300 and math.isfinite(value) else None
