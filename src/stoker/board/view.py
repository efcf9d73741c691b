"""`RunView`: what is shown of one run."""

import math
import re
from typing import Any

import numpy as np
import orjson

from stoker.board.costs import cost_groups
from stoker.board.downsample import Curves
from stoker.board.metrics_index import Floats, MetricsFile
from stoker.board.safe_files import Folder
from stoker.board.saves import checkpoints_of
from stoker.board.settings import config_of, flat
from stoker.board.status import UNREADABLE, Status, status_of
from stoker.hooks.base.monitor import Mode, Monitor

_WATCHED = ("metrics.jsonl", "log.txt", "config.yaml", "env.json", "cost.json", "media.jsonl")
_IMAGE = re.compile(r"[\w.-]{1,200}\.png")
_MOST_MEDIA = 200


class RunView:
    """One run: its numbers, its state, and the files that lie beside them.

    Args:
        id: how the page calls it.
        folder: where it is.
        metrics: its numbers.
    """

    def __init__(self, id: str, folder: Folder, metrics: MetricsFile) -> None:
        self.id, self.folder, self.metrics = id, folder, metrics
        self.version = 0
        self.config: dict[str, Any] = {}
        self.faults: list[str] = []
        self._status: Status | None = None
        self._seen: Any = None
        self._curves = Curves(metrics.columns)
        self._best: tuple[Any, dict[str, Any] | None] = (None, None)

    def look(self, seconds: float = 0.1) -> None:
        """See what is new; `version` grows when something is.

        Whatever goes wrong with one run, the others are shown.
        """
        try:
            self._look(seconds)
        except Exception as error:
            fault = f"it cannot be read: {type(error).__name__}"
            self.version += fault not in self.faults
            self.faults = [fault]
            self._status = self._status or UNREADABLE
            self.metrics.share_read = 1.0

    def _look(self, seconds: float) -> None:
        found = [*self.folder.stats(*_WATCHED), self.folder.below("checkpoints").stat(".lock")]
        seen = [None if one is None else (one.st_size, one.st_mtime_ns) for one in found]
        changed = seen != self._seen
        if changed or not self.metrics.whole:
            changed = self.metrics.refresh(seconds) or changed
        if changed:
            self._seen = seen
            self.config, fault = config_of(self.folder)
            self.faults = [fault] if fault else []
        if changed or (self._status is not None and self._status.state == "running"):
            status = status_of(self.folder, self.metrics.columns, self.config)
            changed = changed or self._status is None or status.state != self._status.state
            self._status = status
        self.version += changed

    @property
    def status(self) -> Status:
        """How it is doing."""
        if self._status is None:
            self.look(0.0)
        assert self._status is not None
        return self._status

    @property
    def curves(self) -> Curves:
        """What is drawn of it."""
        if not self._curves.is_of(self.metrics.columns):
            self._curves = Curves(self.metrics.columns)
        return self._curves

    def summary(self) -> dict[str, Any]:
        """Its line in the list of runs."""
        columns = self.metrics.columns
        faults = list(self.faults)
        if columns.bad:
            faults.append(f"{columns.bad} lines of metrics.jsonl are no rows of numbers")
        return {
            "id": self.id,
            "version": self.version,
            "status": self.status.plain(),
            "best": self.best(),
            "names": list(columns.values),
            "rows": len(columns),
            "read": self.metrics.share_read,
            "faults": faults,
        }

    def details(self) -> dict[str, Any]:
        """All that is shown of it but its curves and its log."""
        return self.summary() | {
            "config": self.config,
            "env": flat(self._json("env.json")),
            "cost": cost_groups(self._json("cost.json")),
            "checkpoints": checkpoints_of(self.folder),
            "media": self.media(),
            "last": self.last(),
        }

    def results(self) -> dict[str, Any]:
        """Its config and what came of it, for a table."""
        status = self.status
        return {
            "id": self.id,
            "state": status.state,
            "config": self.config,
            "last": self.last(),
            "best": self.best(),
        }

    def last(self) -> dict[str, float]:
        """The latest value of every series."""
        values = self.metrics.columns.values
        return {name: float(v.view[-1]) for name, v in list(values.items()) if len(v)}

    def best(self) -> dict[str, Any] | None:
        """The best value of the result that counts, with its step."""
        columns = self.metrics.columns
        key = (columns, len(columns), len(columns.values), self.version)
        if self._best[0] != key:
            with self.metrics.lock:
                self._best = key, self._find_best()
        return self._best[1]

    def media(self) -> list[dict[str, Any]]:
        """Images and texts that were logged, the newest first; of each name and step the last."""
        found: dict[tuple[str, int], dict[str, Any]] = {}
        for line in self.folder.tail("media.jsonl", 1 << 21).split(b"\n"):
            row = _media_row(line)
            if row is not None:
                found.pop((row["name"], row["step"]), None)
                found[row["name"], row["step"]] = row
        return list(reversed(found.values()))[:_MOST_MEDIA]

    def image(self, name: str) -> bytes | None:
        """An image that was logged."""
        if not _IMAGE.fullmatch(name):
            return None
        data = self.folder.below("media").head(name, 1 << 24)
        return data if data.startswith(b"\x89PNG\r\n\x1a\n") else None

    def _find_best(self) -> dict[str, Any] | None:
        columns = self.metrics.columns
        wanted = str(self.config.get("run.checkpoint.best") or "")
        by_worth = sorted(
            ((_worth(name, wanted), name) for name in list(columns.values)), reverse=True
        )
        for worth, name in by_worth:
            mode = _mode(name, self.config.get("run.checkpoint.mode") if name == wanted else None)
            values = columns.values[name].view
            finite = np.isfinite(values)
            if not worth or mode is None or not finite.any():
                continue
            at = _best_place(np.where(finite, values, np.nan), mode)
            row = columns.rows[name].view[at]
            step = int(columns.head["step"].view[row])
            return {"name": name, "value": float(values[at]), "step": step, "mode": mode}
        return None

    def _json(self, name: str) -> Any:
        try:
            return orjson.loads(self.folder.head(name, 1 << 21))
        except ValueError:
            return {}


def _worth(name: str, wanted: str) -> int:
    """How much a result counts: the one the config names, then of validation, then losses."""
    if name == wanted:
        return 4
    if name.startswith("val/"):
        return 2 if name.endswith("loss") else 3
    return 1 if name == "train/loss" else 0


def _best_place(values: Floats, mode: Mode) -> int:
    return int(np.nanargmin(values) if mode == "min" else np.nanargmax(values))


def _mode(name: str, given: Any) -> Mode | None:
    try:
        return Monitor(name, given if given in ("min", "max") else None).mode
    except ValueError:
        return None


def _media_row(line: bytes) -> dict[str, Any] | None:
    try:
        row = orjson.loads(line)
    except ValueError:
        return None
    if not isinstance(row, dict) or not isinstance(row.get("name"), str):
        return None
    step, when = row.get("step"), row.get("time")
    if type(step) is not int or not 0 <= step < 2**53:
        return None
    seconds = float(when) if isinstance(when, int | float) and math.isfinite(when) else None
    shown = {"name": row["name"][:200], "step": step, "time": seconds}
    if row.get("kind") == "image" and isinstance(row.get("file"), str):
        return shown | {"kind": "image", "file": row["file"][:200]}
    if row.get("kind") == "text" and isinstance(row.get("text"), str):
        return shown | {"kind": "text", "text": row["text"][:20000]}
    return None
