"""Metrics for Weights & Biases."""

import os
import shutil
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

from stoker.events.storage import Row
from stoker.events.writers.base import Where, Writer
from stoker.events.writers.jsonl import JsonLines, read_json_lines
from stoker.storage import write_atomic

_HEAD = ("step", "epoch", "samples", "time")


class WandB(Writer):
    """Writes to Weights & Biases, under ``wandb/`` of the run folder; the x axis is the step.

    A run that goes on is the same run there. The rows are kept in ``wandb/rows.jsonl``, too: a kill
    takes with it what W&B has not brought to the disk, so an offline run that goes on is written
    anew from them, whole, into the one folder that is left for ``wandb sync``. On a server the run
    is resumed, and a step that is there already is not written again.

    Args:
        path: the folder; None means ``wandb`` in the run folder.
        project: where W&B lists the run.
        name: of the run; None means that of the run folder.
        mode: "offline" needs no account and no network; None leaves it to ``WANDB_MODE``.
    """

    file = "wandb"

    def __init__(
        self,
        path: str | Path | None = None,
        *,
        project: str = "stoker",
        name: str | None = None,
        mode: Literal["online", "offline"] | None = None,
    ) -> None:
        super().__init__(path)
        if find_spec("wandb") is None:
            raise ImportError(
                "the WandB writer needs the package 'wandb': pip install 'stoker[wandb]'"
            )
        if mode not in ("online", "offline", None):
            raise ValueError(f"mode is 'online' or 'offline', got {mode!r}")
        self._project, self._name, self._mode = project, name, mode
        self._rows = JsonLines()
        self._run: Any = None

    def length(self, path: Path, until: int | None = None) -> int:
        """Bytes of the rows."""
        return self._rows.length(path / "rows.jsonl", until)

    def cut(self, path: Path, length: int, step: int) -> None:
        """Cut off the rows of an attempt that was killed."""
        self._rows.cut(path / "rows.jsonl", length, step)

    def open(self, path: Path) -> None:
        """Begin a run, or go on with the one of this folder."""
        import wandb

        path.mkdir(parents=True, exist_ok=True)
        self._rows.open(path / "rows.jsonl")
        id_file = path / "id"
        if not id_file.exists():
            write_atomic(id_file, os.urandom(4).hex())
        run_id = id_file.read_text(encoding="utf-8")
        offline = (self._mode or os.environ.get("WANDB_MODE")) == "offline"
        if offline:
            for old in path.glob(f"wandb/offline-run-*-{run_id}"):
                shutil.rmtree(old)
        self._run = wandb.init(
            project=self._project,
            name=self._name or path.absolute().parent.name,
            id=run_id,
            resume="allow",
            dir=path,
            mode=self._mode,
            reinit="create_new",
            settings=wandb.Settings(console="off"),
        )
        for row in read_json_lines(path / "rows.jsonl") if offline else ():
            self._log(Row(int(row["step"]), {k: v for k, v in row.items() if k not in _HEAD}))

    def write(self, rows: list[Row], where: Where) -> None:
        """Log the numbers at their steps."""
        self._rows.write(rows, where)
        for row in rows:
            self._log(row)

    def _log(self, row: Row) -> None:
        self._run.log(row.scalars, step=row.step)

    def close(self) -> None:
        """Finish the run."""
        if self._run is not None:
            self._run.finish()
            self._rows.close()
            self._run = None
