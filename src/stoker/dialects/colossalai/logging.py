"""Loggers that know their rank, with a log file for each process."""

import logging
from collections.abc import Sequence
from functools import cache, partialmethod
from pathlib import Path

from stoker.core import dist
from stoker.core.log import get_logger

_LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR")


class DistributedLogger:
    """A logger that logs on the given ranks; ``ranks=None`` means all ranks."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._log = get_logger(f"stoker.{name}")
        self._level = _number("INFO")
        self._files: list[tuple[Path, int]] = []

    def set_level(self, level: str) -> None:
        """Set the lowest level to log."""
        self._level = _number(level)

    def log_to_file(
        self, path: str | Path, mode: str = "a", level: str = "INFO", suffix: str | None = None
    ) -> None:
        """Also log to ``rank_{rank}[_{suffix}].log`` in this folder, which is created."""
        if mode not in ("a", "w"):
            raise ValueError(f"mode must be 'a' (append) or 'w' (overwrite), got {mode!r}")
        name = f"rank_{dist.rank()}" + (f"_{suffix}" if suffix else "")
        file = Path(path).absolute() / f"{name}.log"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.open(mode).close()
        self._files = [(one, at) for one, at in self._files if one != file]
        self._files.append((file, _number(level)))

    def log(self, level: str, message: str, ranks: Sequence[int] | None = None) -> None:
        """Log a message at a level."""
        if _number(level) < self._level or (ranks is not None and dist.rank() not in ranks):
            return
        getattr(self._log, level.lower())(message, ranks=None)
        for file, least in self._files:
            if _number(level) >= least:
                with file.open("a", encoding="utf-8") as out:
                    out.write(f"colossalai - {self.name} - {level}: {message}\n")

    debug, info = partialmethod(log, "DEBUG"), partialmethod(log, "INFO")
    warning, error = partialmethod(log, "WARNING"), partialmethod(log, "ERROR")


def get_dist_logger(
    name: str = "colossalai",
    level: str | None = None,
    root_path: str | Path | None = None,
    mode: str = "a",
) -> DistributedLogger:
    """Return the logger of that name, set to a level and a folder for its files if given.

    ``logging = dict(root_path=…)`` of a config sets up that of the job.
    """
    logger = _logger(name)
    if level is not None:
        logger.set_level(level)
    if root_path is not None:
        logger.log_to_file(root_path, mode)
    return logger


_logger = cache(DistributedLogger)


get_global_dist_logger = get_dist_logger


def disable_existing_loggers(include: Sequence[str] | None = None, except_: str = "stoker") -> None:
    """Silence the loggers of other libraries, or only those that ``include`` names."""
    for name in logging.root.manager.loggerDict if include is None else include:
        if not name.startswith(except_):
            logging.getLogger(name).setLevel(logging.WARNING)


def _number(level: str) -> int:
    if level not in _LEVELS:
        raise ValueError(f"level {level!r} is unknown: expected one of {', '.join(_LEVELS)}")
    return _LEVELS.index(level)
