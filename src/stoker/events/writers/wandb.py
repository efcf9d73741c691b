"""`WandB`: runs on Weights & Biases."""

import os
import shutil
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

from stoker.events.storage import Row
from stoker.events.writers.base import RunProgress, Writer
from stoker.events.writers.jsonl import JsonLines, read_json_lines
from stoker.rundir import files
from stoker.storage import write_atomic

_HEAD = ("step", "epoch", "samples", "time")


class WandB(Writer):
    """Log to Weights & Biases, with the step as the x axis.

    A resumed run continues the same W&B run. Because a kill can lose rows that W&B has not written
    to disk yet, all rows are also kept in ``wandb/rows.jsonl``. A resumed offline run is rewritten
    from them into a single folder for ``wandb sync``; a resumed online run skips steps that the
    server already has.

    Args:
        path: The folder for W&B's files. None means ``wandb`` in the run folder.
        project: The W&B project.
        name: The name of the W&B run. None uses the name of the run folder.
        mode: ``"online"`` or ``"offline"``, which needs no account and no network. None uses
            ``WANDB_MODE``.
    """

    file = files.WANDB

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
            raise ValueError(f"mode must be 'online' or 'offline', got {mode!r}")
        self._project, self._name, self._mode = project, name, mode
        self._rows = JsonLines()
        self._run: Any = None

    def length(self, path: Path, until: int | None = None) -> int:
        """Return the size of ``rows.jsonl`` in bytes."""
        return self._rows.length(path / "rows.jsonl", until)

    def cut(self, path: Path, length: int, step: int) -> None:
        """Drop the rows of a killed attempt."""
        self._rows.cut(path / "rows.jsonl", length, step)

    def open(self, path: Path) -> None:
        """Start a W&B run, or resume the one of this folder."""
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

    def write(self, rows: list[Row], progress: RunProgress) -> None:
        """Log the numbers at their steps."""
        self._rows.write(rows, progress)
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
