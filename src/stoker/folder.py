"""The folder of a run: its name. Whoever writes into it first makes it."""

import os
from pathlib import Path

from stoker import dist

_TRACES = ("metrics.jsonl", "metrics.csv", "log.txt", "model.safetensors", "tb", "trace.json")


class RunFolder:
    """A folder to write a run into.

    A folder that holds a run already is left alone: the new run goes beside it, into ``name-2``,
    ``name-3`` and so on.
    """

    def __init__(self, wanted: str | Path) -> None:
        self._wanted = Path(wanted)
        self._chosen: Path | None = None
        if self._wanted.is_file():
            raise ValueError(f"run_dir '{self._wanted}' is a file, expected a folder or a new name")

    def choose(self) -> None:
        """Settle on a name, the same on all processes, without making anything."""
        if self._chosen is None:
            self._check_writable()
            self._chosen = Path(dist.from_main(str(self._first_free())))

    @property
    def path(self) -> Path:
        """The folder, which need not exist yet."""
        self.choose()
        assert self._chosen is not None
        return self._chosen

    def _check_writable(self) -> None:
        there = self._wanted.absolute()
        while not there.exists():
            there = there.parent
        if not there.is_dir() or not os.access(there, os.W_OK):
            what = "no folder that can be written to"
            raise ValueError(f"run_dir '{self._wanted}' cannot be made: '{there}' is {what}")

    def _first_free(self) -> Path:
        number, path = 1, self._wanted
        while any((path / trace).exists() for trace in _TRACES):
            number += 1
            whole = self._wanted.absolute() if not self._wanted.name else self._wanted
            path = whole.with_name(f"{whole.name}-{number}")
        return path
