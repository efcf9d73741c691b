"""Metrics for TensorBoard."""

from pathlib import Path
from typing import Any

from stoker.events.storage import Row
from stoker.events.writers.base import Where, Writer


class TensorBoard(Writer):
    """Writes event files into ``tb/``; the x axis is the step."""

    file = "tb"

    def __init__(self, path: str | Path | None = None) -> None:
        super().__init__(path)
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise ImportError(
                "the TensorBoard writer needs the package 'tensorboard': "
                "pip install 'stoker[tensorboard]'"
            ) from error
        self._make: Any = SummaryWriter
        self._writer: Any = None
        self._purge: int | None = None

    def cut(self, path: Path, length: int, step: int) -> None:
        """Let TensorBoard pass over what an attempt that was killed wrote after this step."""
        self._purge = step + 1

    def open(self, path: Path) -> None:
        """Start an event file; TensorBoard shows several in one folder as one run."""
        self._writer = self._make(log_dir=str(path), purge_step=self._purge)
        self._purge = None

    def write(self, rows: list[Row], where: Where) -> None:
        """Add the numbers at their steps."""
        for row in rows:
            for name, value in row.scalars.items():
                self._writer.add_scalar(name, value, row.step)
        self._writer.flush()

    def close(self) -> None:
        """Close the event file."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None
