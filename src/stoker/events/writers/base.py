"""`Writer`: what carries rows of numbers out of a run."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from stoker.events.storage import Row


@dataclass(frozen=True, slots=True)
class Where:
    """Where a run is when rows are written: what a reader needs beside the numbers."""

    step: int
    epoch: int
    samples: int
    total_steps: int | None = None
    eta: float | None = None


class Writer(ABC):
    """Carries rows to one destination. It is opened with its first row and closed with the run.

    Args:
        path: where to write; None means `file` in the run folder.
    """

    file: ClassVar[str | None] = None
    """What the writer makes in the run folder; None where it needs no folder."""

    def __init__(self, path: str | Path | None = None) -> None:
        self.path = Path(path) if path is not None else None

    def open(self, path: Path) -> None:  # noqa: B027, a writer without a file needs neither
        """Get ready to write there; called again after a `close`."""

    def length(self, path: Path, until: int | None = None) -> int:
        """How much is written there, until the end of a step if given, for `cut` to go back to."""
        return 0

    def cut(self, path: Path, length: int, step: int) -> None:  # noqa: B027
        """Before `open`: forget what was written after the file had this length, at this step."""

    @abstractmethod
    def write(self, rows: list[Row], where: Where) -> None:
        """Take rows, oldest step first."""

    def close(self) -> None:  # noqa: B027
        """Leave everything complete on disk."""
