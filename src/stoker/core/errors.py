"""What Stoker raises of its own, and how it spells a near miss.

Mistakes in arguments are plain `ValueError` and `TypeError`. Beside them:

    StokerError
    ├── NonFiniteError      a loss or gradient is NaN or infinite
    ├── CheckpointError     a checkpoint cannot be written or read
    ├── UnsupportedURLError a URL was passed where only a local path is supported
    └── RankFailed          a process of a job that was launched has failed

    SystemExit
    └── Preempted           the run was asked to end by a signal, and has saved itself
"""

from collections.abc import Iterable
from difflib import get_close_matches


class StokerError(Exception):
    """Base of the errors that only Stoker raises."""


class NonFiniteError(StokerError, ArithmeticError):
    """A loss or a gradient is NaN or infinite."""


class CheckpointError(StokerError):
    """A checkpoint cannot be written or read, or its folder belongs to another run."""


class UnsupportedURLError(StokerError, ValueError):
    """A URL was passed where only a local path is supported."""


class RankFailed(StokerError):  # noqa: N818
    """A process of a job has failed, and the job was ended.

    Args:
        message: which one, and how.
        code: the exit code of that process, as a shell has it.
    """

    def __init__(self, message: str, code: int = 1) -> None:
        super().__init__(message)
        self.code = code


class Preempted(SystemExit):
    """The run was asked to end by SIGTERM or SIGUSR1; the process leaves with 143."""

    def __init__(self) -> None:
        super().__init__(143)


def did_you_mean(name: str, choices: Iterable[str]) -> str:
    """The end of an error message: the nearest right spelling, or nothing.

    >>> did_you_mean("acuracy", ["accuracy", "recall"])
    "; did you mean 'accuracy'?"
    """
    by_lower: dict[str, str] = {}
    for choice in choices:
        by_lower.setdefault(choice.lower(), choice)
    near = get_close_matches(name.lower(), list(by_lower), n=3, cutoff=0.6)
    if not near:
        return ""
    return "; did you mean " + " or ".join(repr(by_lower[match]) for match in near) + "?"
