"""`RunFolder`: choose the folder of a run. The first writer creates it."""

import os
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from itertools import count
from pathlib import Path
from typing import TypeAlias

from stoker.checkpoint import Checkpoints
from stoker.checkpoint.format.manifest import Manifest
from stoker.core import dist
from stoker.core.errors import CheckpointError
from stoker.core.log import get_logger
from stoker.rundir import files
from stoker.rundir.identity import Identity, changes_since, list_changes
from stoker.rundir.upload import pull_files
from stoker.storage import display, local_path, store_url, url_of, working_folder
from stoker.storage.blobs import Blobs

ResumeFilter: TypeAlias = Callable[[Path], bool]
"""Returns whether to resume the run in a folder."""

_log = get_logger()

_PATIENCE = 15.0
"""Seconds for which a run that starts waits for its store to answer."""

RESUME_MODES = ("auto", "must", "never")

ORIGIN = "origin"
"""The key of a checkpoint's info that holds the path given as ``resume=``."""


class RunFolder:
    """A folder to write a run into.

    A folder that already holds a run is left alone: a new run goes to ``name-2``, ``name-3`` and so
    on, unless it resumes the run in the folder.

    Args:
        path: the folder, or the URL of a place in an object store. A run whose place is a store
            works in a folder of the cache, which stands for the URL.

    Attributes:
        url: the place in a store, None for a local folder.
    """

    def __init__(self, path: str | Path) -> None:
        self._base = working_folder(path, "run_dir")
        self.url = url_of(self._base)
        self._is_pulled = self.url is None
        if path == "":
            raise ValueError("run_dir is empty, expected a folder; pass None to write nothing")
        self._chosen: Path | None = None
        self._settled = False
        if self._base.is_file():
            raise ValueError(f"run_dir '{self._base}' is a file, expected a folder or a new name")

    @classmethod
    def of(cls, run_dir: "str | Path | RunFolder | None") -> "RunFolder | None":
        """Return the folder for the ``run_dir`` of a trainer, None for None."""
        return run_dir if isinstance(run_dir, RunFolder | None) else cls(run_dir)

    def choose(self, resume: str | Path = "auto", identity: Identity | None = None) -> None:
        """Choose the folder, the same on all processes, without creating it.

        With an identity this is the folder of the same run, or a new one. Without one, as for an
        evaluation, it is the newest folder to resume in, and a later call with an identity may
        choose another.

        Args:
            resume: as in ``fit(resume=...)``.
            identity: the run that is about to start.
        """
        if self._chosen is None or (identity is not None and not self._settled):
            self._check_writable()
            pick = partial(self._pick, resume, identity)
            chosen = dist.publish_from_rank0("run folder", pick, self._base)
            # the cache may be elsewhere on this node
            self._chosen = chosen if self.url is None else self._base.with_name(chosen.name)
            self._settled = identity is not None or not holds_run(self._chosen)
            if self.url is not None:
                _log.info(f"{display(self._chosen)} works in {self._chosen}")

    def _pick(self, resume: str | Path, identity: Identity | None) -> Path:
        resumes = resume_filter(resume)
        found = [folder for folder in reversed(self.runs()) if resumes(folder)]
        if not found:
            return self.first_free()
        changes = {path: _changes(path, identity) for path in found}
        nearest = min(found, key=lambda path: len(changes[path]))
        if not changes[nearest]:
            return nearest
        if resume == "must":
            return found[0]  # what has changed is listed when it is restored
        free = self.first_free()
        _log.warning(
            f"{nearest} is another run: {list_changes(changes[nearest])}. This one goes to {free}; "
            "resume='must' resumes the other one anyway"
        )
        return free

    @property
    def path(self) -> Path:
        """The folder, which may not exist yet."""
        self.choose()
        assert self._chosen is not None
        return self._chosen

    def runs(self) -> list[Path]:
        """Return the folders of this name that hold a run, oldest first."""
        self._pull()
        found, free = [], self.first_free()
        for path in self._names():
            if path == free:
                break
            found.append(path)
        return found

    def _pull(self) -> None:
        """Copy the files of the runs of this name from the store, once."""
        if self.url is None or self._is_pulled:
            return
        parent, _, name = self.url.rpartition("/")
        number = re.compile(re.escape(name) + r"(-[0-9]+)?")
        try:
            for found in filter(number.fullmatch, Blobs(parent, _PATIENCE).names()):
                pull_files(self._base.with_name(found), f"{parent}/{found}")
        except OSError as error:
            raise CheckpointError(
                f"run_dir '{self.url}' cannot be read: {error.strerror}"
            ) from error
        self._is_pulled = True

    def _check_writable(self) -> None:
        parent = self._base.absolute()
        while not parent.exists():
            parent = parent.parent
        if not parent.is_dir() or not os.access(parent, os.W_OK):
            raise ValueError(
                f"run_dir '{self._base}' cannot be created: '{parent}' is not a writable folder"
            )

    def first_free(self) -> Path:
        """Return the first folder of this name that holds no run."""
        return next(path for path in self._names() if not holds_run(path))

    def _names(self) -> Iterator[Path]:
        yield self._base
        base = self._base if self._base.name else self._base.absolute()
        for number in count(2):
            yield base.with_name(f"{base.name}-{number}")


def holds_run(folder: Path) -> bool:
    """Return whether a folder holds any file of a run."""
    return any((folder / name).exists() for name in files.TRACES_OF_A_RUN)


def has_checkpoints(run_dir: Path) -> bool:
    """Return whether the run in a folder can be resumed: it saves checkpoints, or did not train."""
    if (run_dir / files.CHECKPOINTS).is_dir():
        return True
    return (run_dir / files.IDENTITY).is_file() and not _has_begun(run_dir)


def _has_begun(run_dir: Path) -> bool:
    """Return whether the run in a folder has saved or recorded anything."""
    recorded = any((run_dir / name).exists() for name in files.RESULTS_OF_A_RUN)
    return recorded or bool(Checkpoints(run_dir / files.CHECKPOINTS).list())


def _changes(run_dir: Path, identity: Identity | None) -> list[str]:
    """Return how a run that starts differs from the one in a folder, if that one had begun."""
    if identity is None or not ((run_dir / files.IDENTITY).exists() or _has_begun(run_dir)):
        return []
    return changes_since(run_dir, identity)


def resume_path(resume: str | Path) -> str | None:
    """Return the absolute path to resume from, None if ``resume`` is a mode."""
    if resume in RESUME_MODES:
        return None
    return store_url(resume, "resume") or str(local_path(resume, "resume").absolute())


def recorded_origin(checkpoints: Checkpoints) -> str | None:
    """Return the path that the run of these checkpoints was resumed from, None for no path."""
    for path in reversed(checkpoints.list()):
        with suppress(CheckpointError):
            origin = Manifest.read(path).info.get(ORIGIN)
            return str(origin) if origin is not None else None
    return None


def resume_filter(resume: str | Path) -> ResumeFilter:
    """Return the filter that accepts the folders in which ``fit(resume=...)`` continues a run."""
    if resume == "never":
        return lambda run_dir: False
    if resume in RESUME_MODES:
        return has_checkpoints
    origin = resume_path(resume)
    return lambda run_dir: recorded_origin(Checkpoints(run_dir / files.CHECKPOINTS)) == origin
