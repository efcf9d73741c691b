"""Metrics for MLflow."""

import json
import math
import re
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from stoker.events.storage import Row
from stoker.events.writers.base import Where, Writer
from stoker.storage import write_atomic

_REFUSED = re.compile(r"[^\w\-. :/]", re.ASCII)


class MLflow(Writer):
    """Writes to a store of MLflow; the x axis is the step.

    The run there is named in ``mlflow.json`` of the run folder, so that a run that goes on is the
    same run, and a number that an attempt has written before it was killed is not written twice.
    A sign that MLflow takes in no name becomes ``_``.

    Args:
        path: of that file; None means ``mlflow.json`` in the run folder.
        experiment: where MLflow lists the run.
        name: of the run; None means that of the run folder.
        uri: of the store, such as ``sqlite:///mlflow.db``; None leaves it to MLflow, which takes
            ``MLFLOW_TRACKING_URI``.
    """

    file = "mlflow.json"

    def __init__(
        self,
        path: str | Path | None = None,
        *,
        experiment: str = "stoker",
        name: str | None = None,
        uri: str | None = None,
    ) -> None:
        super().__init__(path)
        if find_spec("mlflow") is None:
            raise ImportError(
                "the MLflow writer needs the package 'mlflow-skinny': pip install 'stoker[mlflow]'"
            )
        self._experiment, self._name, self._uri = experiment, name, uri
        self._client: Any = None
        self._id = ""
        self._there: dict[str, dict[int, float]] | None = None  # in the store, by name and step

    def open(self, path: Path) -> None:
        """Begin a run, or go on with the one of this folder."""
        from mlflow import MlflowClient

        self._client = MlflowClient(tracking_uri=self._uri)
        if path.exists():
            self._id = json.loads(path.read_text(encoding="utf-8"))["run_id"]
            self._client.update_run(self._id, status="RUNNING")
            self._there = {}
            return
        found = self._client.get_experiment_by_name(self._experiment)
        where = found.experiment_id if found else self._client.create_experiment(self._experiment)
        run = self._client.create_run(where, run_name=self._name or path.absolute().parent.name)
        self._id, self._there = run.info.run_id, None
        write_atomic(path, json.dumps({"run_id": self._id}) + "\n")

    def write(self, rows: list[Row], where: Where) -> None:
        """Log the numbers at their steps."""
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        new = [
            Metric(name, float(value), now, row.step)
            for row in rows
            for given, value in row.scalars.items()
            if not self._has(name := _REFUSED.sub("_", given), row.step, value)
        ]
        if new:
            self._client.log_batch(self._id, metrics=new)

    def _has(self, name: str, step: int, value: float) -> bool:
        """Whether an earlier attempt has written this number."""
        if self._there is None:
            return False
        if name not in self._there:
            history = self._client.get_metric_history(self._id, name)
            self._there[name] = {metric.step: metric.value for metric in history}
        then = self._there[name].get(step)
        return then is not None and _stored(then) == _stored(value)

    def close(self) -> None:
        """Let MLflow know that the run is over, for now."""
        if self._client is not None:
            self._client.set_terminated(self._id)
            self._client = None


def _stored(value: float) -> float | None:
    """A number as a store gives it back: it knows no infinity; None for what is no number."""
    largest = sys.float_info.max
    return None if math.isnan(value) else max(-largest, min(largest, value))
