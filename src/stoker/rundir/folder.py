"""The folder of a run: its name. Whoever writes into it first makes it."""

import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import TypeAlias

from stoker.checkpoint import Checkpoints
from stoker.checkpoint.format.manifest import Manifest
from stoker.core import dist
from stoker.core.errors import CheckpointError
from stoker.storage import local_path

MayContinue: TypeAlias = Callable[[Path], bool]
"""Tells whether the run in a folder is to go on."""

RESUME_WORDS = ("auto", "must", "never")

_TRACES = (
    "config.yaml",
    "env.json",
    "metrics.jsonl",
    "metrics.csv",
    "log.txt",
    "ledger.jsonl",
    "model.safetensors",
    "tb",
    "wandb",
    "mlflow.json",
    "trace.json",
    "checkpoints",
)


class RunFolder:
    """A folder to write a run into.

    A folder that holds a run already is left alone: the new run goes beside it, into ``name-2``,
    ``name-3`` and so on, unless the run in it has checkpoints and is to go on.

    Args:
        wanted: its name.
        settled: whether it is this folder and no other of its name.
    """

    def __init__(self, wanted: str | Path, *, settled: bool = False) -> None:
        self._wanted = local_path(wanted, "run_dir")
        self._settled = settled
        self._chosen: Path | None = None
        if self._wanted.is_file():
            raise ValueError(f"run_dir '{self._wanted}' is a file, expected a folder or a new name")

    @classmethod
    def of(cls, run_dir: "str | Path | RunFolder | None") -> "RunFolder | None":
        """What a trainer was given, as a folder; None for none."""
        return cls(run_dir) if isinstance(run_dir, str | Path) else run_dir

    def choose(self, goes_on: MayContinue = lambda _: False) -> None:
        """Settle on a name, the same on all processes, without making anything.

        The newest folder whose run ``goes_on`` is taken; a new one where there is none.
        """
        if self._chosen is None:
            self._check_writable()
            old = [folder for folder in self.runs() if goes_on(folder)]
            path = self._wanted if self._settled else old[-1] if old else self.first_free()
            self._chosen = Path(dist.broadcast_from_rank0(str(path)))

    @property
    def path(self) -> Path:
        """The folder, which need not exist yet."""
        self.choose()
        assert self._chosen is not None
        return self._chosen

    def runs(self) -> list[Path]:
        """The folders of this name that hold a run, oldest first."""
        found, free = [], self.first_free()
        for path in self._names():
            if path == free:
                break
            found.append(path)
        return found

    def _check_writable(self) -> None:
        there = self._wanted.absolute()
        while not there.exists():
            there = there.parent
        if not there.is_dir() or not os.access(there, os.W_OK):
            what = "no folder that can be written to"
            raise ValueError(f"run_dir '{self._wanted}' cannot be made: '{there}' is {what}")

    def first_free(self) -> Path:
        """The first folder of this name that holds no run."""
        return next(path for path in self._names() if not holds_run(path))

    def _names(self) -> Iterator[Path]:
        yield self._wanted
        whole = self._wanted if self._wanted.name else self._wanted.absolute()
        for number in count(2):
            yield whole.with_name(f"{whole.name}-{number}")


def holds_run(folder: Path) -> bool:
    """Whether a run has left anything there."""
    return any((folder / trace).exists() for trace in _TRACES)


def has_checkpoints(run_dir: Path) -> bool:
    """Whether a run saves itself there, and so may go on."""
    return (run_dir / "checkpoints").is_dir()


def origin_of(resume: str | Path) -> str | None:
    """The path that a run is told to go on from, None if it is told no path."""
    return None if resume in RESUME_WORDS else str(local_path(resume, "resume").absolute())


def came_from(checkpoints: Checkpoints) -> str | None:
    """The path that the newest of these checkpoints says its run was told to go on from."""
    for path in reversed(checkpoints.list()):
        with suppress(CheckpointError):
            found = Manifest.read(path).info.get("origin")
            return str(found) if found is not None else None
    return None


def may_continue_with(resume: str | Path) -> MayContinue:
    """Tells whether a fit goes on in the folder of an earlier run, or needs one of its own."""
    if resume == "never":
        return lambda run_dir: False
    if resume in RESUME_WORDS:
        return has_checkpoints
    return lambda run_dir: came_from(Checkpoints(run_dir / "checkpoints")) == origin_of(resume)
