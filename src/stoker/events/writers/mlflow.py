"""`MLflow`: runs on an MLflow tracking server or in a local store."""

import json
import math
import re
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from stoker.events.storage import Row
from stoker.events.writers.base import RunProgress, Writer
from stoker.rundir import files
from stoker.storage import write_atomic

_INVALID = re.compile(r"[^\w\-. :/]", re.ASCII)


class MLflow(Writer):
    """Log to MLflow, with the step as the x axis.

    The ID of the MLflow run is kept in ``mlflow.json`` in the run folder, so that a resumed run
    continues the same MLflow run and does not log any value twice. Characters that MLflow does not
    allow in names become ``_``.

    Args:
        path: The file with the ID. None means ``mlflow.json`` in the run folder.
        experiment: The MLflow experiment.
        name: The name of the MLflow run. None uses the name of the run folder.
        uri: The tracking URI, such as ``sqlite:///mlflow.db``. None uses MLflow's default, which
            is ``MLFLOW_TRACKING_URI`` if set.
    """

    file = files.MLFLOW

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
        self._logged: dict[str, dict[int, float]] | None = None  # values by name and step

    def open(self, path: Path) -> None:
        """Start an MLflow run, or resume the one of this folder."""
        from mlflow import MlflowClient

        self._client = MlflowClient(tracking_uri=self._uri)
        if path.exists():
            self._id = json.loads(path.read_text(encoding="utf-8"))["run_id"]
            self._client.update_run(self._id, status="RUNNING")
            self._logged = {}
            return
        found = self._client.get_experiment_by_name(self._experiment)
        experiment = (
            found.experiment_id if found else self._client.create_experiment(self._experiment)
        )
        run = self._client.create_run(
            experiment, run_name=self._name or path.absolute().parent.name
        )
        self._id, self._logged = run.info.run_id, None
        write_atomic(path, json.dumps({"run_id": self._id}) + "\n")

    def write(self, rows: list[Row], progress: RunProgress) -> None:
        """Log the numbers at their steps."""
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        new = [
            Metric(name, float(value), now, row.step)
            for row in rows
            for given, value in row.scalars.items()
            if not self._is_logged(name := _INVALID.sub("_", given), row.step, value)
        ]
        if new:
            self._client.log_batch(self._id, metrics=new)

    def _is_logged(self, name: str, step: int, value: float) -> bool:
        """Return whether an earlier attempt logged this value."""
        if self._logged is None:
            return False
        if name not in self._logged:
            history = self._client.get_metric_history(self._id, name)
            self._logged[name] = {metric.step: metric.value for metric in history}
        logged = self._logged[name].get(step)
        return logged is not None and _stored(logged) == _stored(value)

    def close(self) -> None:
        """Mark the MLflow run as finished."""
        if self._client is not None:
            self._client.set_terminated(self._id)
            self._client = None


def _stored(value: float) -> float | None:
    """Return a value as MLflow stores it: infinities are clamped; None for NaN."""
    largest = sys.float_info.max
    return None if math.isnan(value) else max(-largest, min(largest, value))
