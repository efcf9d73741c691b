"""`Runs`: the runs in a folder, looked at again and again, each as cheaply as can be."""

import os
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from time import monotonic, time
from typing import Any
from urllib.parse import quote

import xxhash

from stoker.board.metrics_index import MetricsFile
from stoker.board.safe_files import Folder
from stoker.board.view import RunView

_TRACES = ("metrics.jsonl", "env.json", "log.txt")
_DEPTH = 3
MOST = 2000
"""How many runs are shown."""


class Runs:
    """Finds runs below a folder; a folder that is itself a run is the only one.

    Args:
        root: the runs folder.
        cache: where indexes of large files are kept; None keeps none.
    """

    def __init__(self, root: Path, cache: Path | None = None) -> None:
        self.root, self._cache = root.resolve(), cache
        self._views: dict[str, RunView] = {}
        self._looking = threading.Lock()
        self._wanted: dict[str, float] = {}
        self._next = 0
        self._find_after = 0.0
        self.find()

    def __iter__(self) -> Iterator[RunView]:
        return iter(list(self._views.values()))

    def __len__(self) -> int:
        return len(self._views)

    def __getitem__(self, id: str) -> RunView:
        """The run of that id, which from now on is read before others."""
        view = self._views[id]
        self._wanted[id] = monotonic()
        return view

    def find(self) -> None:
        """See which runs there are; where that takes long, not every time."""
        began = monotonic()
        if began < self._find_after:
            return
        found = {_id(folder): folder for folder in self._folders()}
        views = {id: self._views.get(id) or self._view(id, at) for id, at in found.items()}
        self._views = dict(sorted(views.items()))
        self._find_after = monotonic() + 20 * (monotonic() - began)

    def look(self, seconds: float = 0.4) -> bool:
        """Read on in all runs, for about so long; whether some have more to read.

        Those that somebody has open come first, the others by turns.
        """
        with self._looking:
            self.find()
            until = monotonic() + seconds
            lately = monotonic() - 60
            first = [v for id, v in self._views.items() if self._wanted.get(id, 0) > lately]
            others = [v for v in self._views.values() if v not in first]
            turn = self._next % len(others) if others else 0
            for number, view in enumerate([*first, *others[turn:], *others[:turn]]):
                view.look(min(0.2, max(0.0, until - monotonic())))
                self._next = turn + max(0, number - len(first))
                if monotonic() > until:
                    break
            return not all(view.metrics.whole for view in self._views.values())

    def keep(self) -> None:
        """Put the indexes of large files into the cache."""
        for view in self:
            if view.metrics.whole:
                view.metrics.keep()

    def table(self) -> list[dict[str, Any]]:
        """What every run was made with, and what came of it."""
        return [view.results() for view in self]

    def _view(self, id: str, folder: Folder) -> RunView:
        key = xxhash.xxh3_128_hexdigest(os.fsencode(folder.path))
        cache = self._cache / f"{key}.index" if self._cache is not None else None
        metrics = MetricsFile(lambda: folder.open("metrics.jsonl"), cache)
        return RunView(id, folder, metrics)

    def _folders(self) -> Iterator[Folder]:
        if _is_run(Folder(self.root)) and self.root.name:
            yield Folder(self.root.parent, self.root.name)
            return
        waiting, count = [Folder(self.root)], 0
        while waiting and count < MOST:
            folder = waiting.pop()
            for name in folder.folders():
                inner = folder.below(name)
                if _id(inner) in self._views or _is_run(inner):
                    count += 1
                    yield inner
                elif len(inner.parts) < _DEPTH and not name.startswith("."):
                    waiting.append(inner)
                if count >= MOST:
                    break


def tidy(cache: Path, days: float = 30) -> None:
    """Remove indexes that nobody has used for so long."""
    for path in cache.glob("*.index"):
        with suppress(OSError):
            if path.stat().st_mtime < time() - days * 86400:
                path.unlink()


def _is_run(folder: Folder) -> bool:
    inside = {*folder.files()}
    return any(trace in inside for trace in _TRACES) or (
        "checkpoints" in folder.folders() and not inside
    )


def _id(folder: Folder) -> str:
    """The place of a run below the runs folder, in letters that every page can carry."""
    path = "/".join(folder.parts)
    try:
        path.encode()
    except UnicodeEncodeError:
        return quote(os.fsencode(path))
    return path
