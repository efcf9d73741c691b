"""`TensorBoard`: event files for TensorBoard."""

from pathlib import Path
from typing import Any

from stoker.events.storage import Row
from stoker.events.writers.base import RunProgress, Writer
from stoker.rundir import files


def summary_writer() -> Any:
    """Return the class that writes event files, or raise an ImportError that names its package."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise ImportError(
            "the TensorBoard writer needs the package 'tensorboard': "
            "pip install 'stoker[tensorboard]'"
        ) from error
    return SummaryWriter


class TensorBoard(Writer):
    """Write TensorBoard event files to ``tb/``, with the step as the x axis."""

    file = files.TENSORBOARD

    def __init__(self, path: str | Path | None = None) -> None:
        super().__init__(path)
        self._make = summary_writer()
        self._writer: Any = None
        self._purge: int | None = None

    def cut(self, path: Path, length: int, step: int) -> None:
        """Make TensorBoard discard what a killed attempt wrote after this step."""
        self._purge = step + 1

    def open(self, path: Path) -> None:
        """Start a new event file; TensorBoard merges the files of a folder."""
        self._writer = self._make(log_dir=str(path), purge_step=self._purge)
        self._purge = None

    def write(self, rows: list[Row], progress: RunProgress) -> None:
        """Write the numbers at their steps."""
        for row in rows:
            for name, value in row.scalars.items():
                self._writer.add_scalar(name, value, row.step)
        self._writer.flush()

    def close(self) -> None:
        """Close the event file."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None
