"""`Writer`: the base class of writers."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from stoker.events.storage import Row
from stoker.storage import local_path


@dataclass(slots=True)  # not frozen: that would make five more calls per line
class RunProgress:
    """How far the run is when rows are written.

    Attributes:
        step: Finished steps.
        epoch: Finished epochs.
        samples: Samples seen.
        total_steps: The number of steps the run will make, if known.
        eta: The estimated seconds left, if known.
    """

    step: int
    epoch: int
    samples: int
    total_steps: int | None = None
    eta: float | None = None


class Writer(ABC):
    """Write rows of numbers to one destination.

    A writer is opened before its first row and closed at the end of the run. Subclasses implement
    `write`; those with a file or folder also set `file` and implement `open` and `close`, and
    `length` and `cut` to drop what a killed attempt wrote after its last checkpoint.

    Args:
        path: Where to write. None means `file` in the run folder.
    """

    file: ClassVar[str | None] = None
    """The name of the file or folder in the run folder; None if the writer needs none."""

    def __init__(self, path: str | Path | None = None) -> None:
        self.path = local_path(path) if path is not None else None

    def open(self, path: Path) -> None:  # noqa: B027, optional
        """Prepare to write to ``path``; called again after `close`."""

    def length(self, path: Path, until: int | None = None) -> int:
        """Return the length to pass to `cut`: the current one, or that after step ``until``."""
        return 0

    def cut(self, path: Path, length: int, step: int) -> None:  # noqa: B027
        """Drop everything written after the file had this length at this step; precedes `open`."""

    def written(self, path: Path) -> list[tuple[int, set[str]]] | None:
        """Return the step and the names of each row in the file; None if that is unknown."""
        return None

    @abstractmethod
    def write(self, rows: list[Row], progress: RunProgress) -> None:
        """Write rows, oldest step first."""

    def close(self) -> None:  # noqa: B027
        """Flush and close."""
