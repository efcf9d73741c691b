"""A logger that knows its rank, and a log file."""

import logging
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from stoker.core import dist
from stoker.core.wrap import wrapped
from stoker.rundir import files

_FILE_FORMAT = logging.Formatter(
    "%(asctime)s %(levelname)s %(message)s", datefmt="%Y-%m-%d %H:%M:%S"
)


_hinted: set[str] = set()


class RankLogger:
    """A logger that logs on the given ranks only; ``ranks=None`` means all.

    >>> log = get_logger()
    >>> log.info("once per job")
    >>> log.warning("from two of them", ranks=[0, 1])
    """

    def __init__(self, name: str) -> None:
        self._logger = logging.getLogger(name)

    def debug(self, message: str, *, ranks: Sequence[int] | None = (0,)) -> None:
        """Log a message for debugging."""
        self._log(logging.DEBUG, message, ranks)

    def info(self, message: str, *, ranks: Sequence[int] | None = (0,)) -> None:
        """Log what happens."""
        self._log(logging.INFO, message, ranks)

    def hint(self, message: str) -> None:
        """Log a switch that the user may want to set, once per process."""
        if message not in _hinted:
            _hinted.add(message)
            self._log(logging.INFO, f"hint: {message}", (0,))

    def warning(self, message: str, *, ranks: Sequence[int] | None = (0,)) -> None:
        """Log what the user may want to change."""
        self._log(logging.WARNING, message, ranks)

    def error(
        self,
        message: str,
        *,
        ranks: Sequence[int] | None = None,
        error: BaseException | None = None,
    ) -> None:
        """Log a failure, with the traceback of ``error``; on every rank by default."""
        self._log(logging.ERROR, message, ranks, error)

    def _log(
        self,
        level: int,
        message: str,
        ranks: Sequence[int] | None,
        error: BaseException | None = None,
    ) -> None:
        if ranks is not None and dist.rank() not in ranks:
            return
        program = logging.getLogger()
        if not program.handlers or level >= program.level:
            self._logger.log(level, message, exc_info=error)
            return
        for handler in logging.getLogger("stoker").handlers:
            if isinstance(handler, LogFile):  # the file gets records that the program filters out
                handler.write(level, message, error)


class _Terminal(logging.Handler):
    """Writes to the current standard error, so that a live bar can print lines above itself."""

    def __init__(self) -> None:
        super().__init__(level=logging.INFO)

    def emit(self, record: logging.LogRecord) -> None:
        if logging.getLogger().handlers:
            return  # the program has configured logging, which shows the record already
        loud = record.levelno >= logging.WARNING
        label = f"{record.levelname.lower()}: " if loud else ""
        print(wrapped(label + record.getMessage(), sys.stderr), file=sys.stderr)


@contextmanager
def only_warnings() -> Iterator[None]:
    """Within it, the terminal shows warnings and errors; the log file still gets everything."""
    get_logger()
    shown = [one for one in logging.getLogger("stoker").handlers if isinstance(one, _Terminal)]
    for handler in shown:
        handler.setLevel(logging.WARNING)
    try:
        yield
    finally:
        for handler in shown:
            handler.setLevel(logging.INFO)


class LogFile(logging.Handler):
    """The log file of one rank: ``log.txt`` on rank 0, ``log.txt.rankN`` on the others.

    Records are kept in memory until ``ready()``, so that a run that fails before its first step
    leaves no file.
    """

    def __init__(self, folder: Path, ready: Callable[[], bool]) -> None:
        super().__init__()
        self.setFormatter(_FILE_FORMAT)
        self._folder = folder
        self._ready = ready
        self._path: Path | None = None
        self._waiting: list[str] = []
        self._failed = False

    def open(self) -> None:
        """Write the records kept so far; from now on records are written at once."""
        if self._path is None:
            self._path = self._folder / files.log_file(dist.rank())
            self._write("".join(self._waiting))
            self._waiting.clear()

    def emit(self, record: logging.LogRecord) -> None:
        """Write one record, or keep it until the file is open."""
        line = self.format(record) + "\n"
        if self._path is None and self._ready():
            self.open()
        if self._path is None:
            self._waiting.append(line)
        else:
            self._write(line)

    def write(self, level: int, message: str, error: BaseException | None = None) -> None:
        """Write a line to this file only."""
        info = None if error is None else (type(error), error, error.__traceback__)
        self.emit(logging.LogRecord("stoker", level, "", 0, message, None, info))

    def _write(self, text: str) -> None:
        """Append to the file; if that fails, warn once, because a log must not end the run."""
        assert self._path is not None
        if self._failed:
            return
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            with self._path.open("a", encoding="utf-8") as file:
                file.write(text)
        except OSError as error:
            self._failed = True
            print(
                f"warning: '{self._path}' cannot be written: {error.strerror}; the log is not "
                "recorded",
                file=sys.stderr,
            )


def get_logger(name: str = "stoker") -> RankLogger:
    """Return the logger of that name; messages from INFO up appear on the terminal."""
    root = logging.getLogger("stoker")
    if not any(isinstance(handler, _Terminal) for handler in root.handlers):
        root.addHandler(_Terminal())
        if root.level == logging.NOTSET:
            root.setLevel(logging.DEBUG)
    return RankLogger(name)
