"""The errors that Stoker raises, and suggestions for misspelled names.

Mistakes in arguments raise `ValueError` and `TypeError`. The other errors are:

    StokerError
    ├── NonFiniteError      a loss or gradient is NaN or infinite
    ├── CheckpointError     a checkpoint cannot be written or read
    │   └── CheckpointMismatchError   it belongs to another model or run
    ├── WriteError          a file of a run cannot be written
    ├── DataError           a record of a stream is corrupt, or its data has changed
    ├── UnsupportedURLError a URL was passed where only a local path is supported
    └── RankFailed          a rank of a launched job failed

    ValueError
    └── ConfigError         a config or an option of a command has faults

    SystemExit
    └── Preempted           a signal ended the run, which has saved itself
"""

from collections.abc import Iterable
from difflib import get_close_matches
from opcode import opmap
from pathlib import Path

_LONGEST = 2000


class StokerError(Exception):
    """Base of the errors that only Stoker raises."""


class NonFiniteError(StokerError, ArithmeticError):
    """A loss or a gradient is NaN or infinite."""


class CheckpointError(StokerError):
    """A checkpoint cannot be written or read, or its folder belongs to another run."""


class CheckpointMismatchError(CheckpointError):
    """A checkpoint can be read, but belongs to another model or run."""


class WriteError(StokerError, OSError):
    """A file of a run cannot be written, for example because the disk is full.

    Args:
        message: the file, the reason, and what to do.
        error: what the system reported.
    """

    def __init__(self, message: str, error: OSError) -> None:
        super().__init__(message)
        self.message = message
        self.errno, self.strerror = error.errno, error.strerror

    def __str__(self) -> str:
        """Return the message."""
        return self.message


class DataError(StokerError, ValueError):
    """A record of a stream cannot be read, or its data has changed since it was indexed."""


class UnsupportedURLError(StokerError, ValueError):
    """A URL was passed where only a local path is supported."""


class ConfigError(ValueError):
    """A config that cannot be read or has faults; one line per fault, with its place."""

    exit_code = 2
    """The exit code of a process with an invalid config; it prints no traceback."""

    def __init__(self, *faults: str) -> None:
        faults = tuple(map(_cut, faults))
        super().__init__("\n".join(faults))
        self.faults = faults


def _cut(text: str) -> str:
    """Shorten a message that quotes a long value, and replace what cannot be printed."""
    text = text.encode("utf-8", "backslashreplace").decode()
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST // 2]} … {text[-_LONGEST // 2 :]}"


class RankFailed(StokerError):  # noqa: N818
    """A rank of a job failed, and the job was ended.

    Args:
        message: which rank, and how it failed.
        code: its exit code, as a shell reports it.
    """

    def __init__(self, message: str, code: int = 1) -> None:
        super().__init__(message)
        self.code = code


class Preempted(SystemExit):
    """SIGTERM or SIGUSR1 ended the run; the process exits with 143."""

    def __init__(self) -> None:
        super().__init__(143)


def is_sentence(error: BaseException) -> bool:
    """Return whether Stoker raised an error itself, with a message written for users.

    An error of another package, or one that Python raised because of a bug, needs its traceback.
    """
    if isinstance(error, StokerError) or hasattr(error, "exit_code"):
        return True
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None:
        return False
    code = trace.tb_frame.f_code
    in_stoker = trace.tb_frame.f_globals.get("__name__", "").partition(".")[0] == "stoker"
    return in_stoker and code.co_code[trace.tb_lasti] == opmap["RAISE_VARARGS"]


def sentence(error: BaseException) -> str:
    """Return the message of an error with its notes, in one line."""
    return "; ".join([str(error), *getattr(error, "__notes__", [])])


def check_number(name: str, value: object, *, integer: bool = False) -> None:
    """Raise a `TypeError` if an argument is no number, or no integer where one is needed."""
    found = type(value)
    if issubclass(found, bool) or not hasattr(found, "__index__" if integer else "__float__"):
        kind = "an integer" if integer else "a number"
        raise TypeError(f"{name} must be {kind}, got {value!r}")


def check_count(name: str, value: object, least: int = 1) -> None:
    """Raise a `ValueError` if an argument is no integer of at least ``least``."""
    if type(value) is not int or value < least:
        raise ValueError(f"{name} must be an integer of at least {least}, got {value!r}")


def did_you_mean(name: str, choices: Iterable[str]) -> str:
    """Return the end of an error message: the nearest spelling, or an empty string.

    >>> did_you_mean("acuracy", ["accuracy", "recall"])
    "; did you mean 'accuracy'?"
    """
    return _suggestion(_nearest(name, choices))


def did_you_mean_path(path: Path) -> str:
    """Return the end of an error message about a missing path: the nearest one beside it."""
    beside = path.parent.iterdir() if path.parent.is_dir() else ()
    near = _nearest(path.name, [one.name for one in beside])
    return _suggestion([str(path.parent / name) for name in near])


def _nearest(name: str, choices: Iterable[str]) -> list[str]:
    by_lower: dict[str, str] = {}
    for choice in choices:
        by_lower.setdefault(choice.lower(), choice)
    near = get_close_matches(name.lower(), list(by_lower), n=3, cutoff=0.6)
    return [by_lower[match] for match in near]


def _suggestion(near: Iterable[str]) -> str:
    either = " or ".join(map(repr, near))
    return f"; did you mean {either}?" if either else ""
