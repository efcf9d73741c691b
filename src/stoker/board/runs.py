"""The runs in a folder: keep them up to date, and stream changes to open pages."""

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from pathlib import Path
from time import monotonic, time
from typing import Any
from urllib.parse import quote

import orjson
import xxhash
from starlette.concurrency import run_in_threadpool

from stoker.board.view import RunView
from stoker.rundir import files
from stoker.rundir.reader import RunReader
from stoker.rundir.safe_folder import SafeFolder

_TRACES = (files.METRICS, files.ENVIRONMENT, files.LOG)
_DEPTH = 3
MOST = 2000
"""The largest number of runs that are shown."""


class Runs:
    """The runs below a folder, or the folder itself if it is a run.

    Args:
        root: the folder.
        cache: the folder for indexes of large files; None saves none.
    """

    def __init__(self, root: Path, cache: Path | None = None) -> None:
        self.root, self._cache = root.resolve(), cache
        self._views: dict[str, RunView] = {}
        self._refreshing = threading.Lock()
        self._wanted: dict[str, float] = {}
        self._next = 0
        self._find_after = 0.0
        self.find()

    def __iter__(self) -> Iterator[RunView]:
        return iter(list(self._views.values()))

    def __len__(self) -> int:
        return len(self._views)

    def __getitem__(self, id: str) -> RunView:
        """Return a run by its id; it is read before the others for the next minute."""
        view = self._views[id]
        self._wanted[id] = monotonic()
        return view

    def find(self) -> None:
        """Find the runs; if that is slow, it is skipped for a while afterwards."""
        began = monotonic()
        if began < self._find_after:
            return
        found = {_id(folder): folder for folder in self._folders()}
        views = {id: self._views.get(id) or self._view(id, at) for id, at in found.items()}
        self._views = dict(sorted(views.items()))
        self._find_after = monotonic() + 20 * (monotonic() - began)

    def refresh(self, seconds: float = 0.4) -> bool:
        """Read what is new for about ``seconds``, and return whether there is more to read.

        Runs that are open on a page come first, the others take turns.
        """
        with self._refreshing:
            self.find()
            until = monotonic() + seconds
            lately = monotonic() - 60
            first = [v for id, v in self._views.items() if self._wanted.get(id, 0) > lately]
            others = [v for v in self._views.values() if v not in first]
            turn = self._next % len(others) if others else 0
            for number, view in enumerate([*first, *others[turn:], *others[:turn]]):
                view.refresh(min(0.2, max(0.0, until - monotonic())))
                self._next = turn + max(0, number - len(first))
                if monotonic() > until:
                    break
            return not all(view.metrics.complete for view in self._views.values())

    def save_indexes(self) -> None:
        """Save the indexes of large files to the cache."""
        for view in self:
            if view.metrics.complete:
                view.metrics.save_index()

    def table(self) -> list[dict[str, Any]]:
        """Return config and results of every run."""
        return [view.results() for view in self]

    def _view(self, id: str, folder: SafeFolder) -> RunView:
        key = xxhash.xxh3_128_hexdigest(os.fsencode(folder.path))
        cache = self._cache / f"{key}.index" if self._cache is not None else None
        return RunView(id, RunReader(folder, cache))

    def _folders(self) -> Iterator[SafeFolder]:
        if _is_run(SafeFolder(self.root)) and self.root.name:
            yield SafeFolder(self.root.parent, self.root.name)
            return
        waiting, count = [SafeFolder(self.root)], 0
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


def remove_old_indexes(cache: Path, days: float = 30) -> None:
    """Remove the indexes in a cache that were not used for some days."""
    for path in cache.glob("*.index"):
        with suppress(OSError):
            if path.stat().st_mtime < time() - days * 86400:
                path.unlink()


def _is_run(folder: SafeFolder) -> bool:
    inside = {*folder.files()}
    return any(trace in inside for trace in _TRACES) or (
        files.CHECKPOINTS in folder.folders() and not inside
    )


def _id(folder: SafeFolder) -> str:
    """Return the path of a run below the root, quoted if it is not valid UTF-8."""
    path = "/".join(folder.parts)
    try:
        path.encode()
    except UnicodeEncodeError:
        return quote(os.fsencode(path))
    return path


_PERIOD = 1.0
_SILENCE = 15.0


class Watch:
    """Refreshes runs while a page is open, once for all pages.

    Args:
        runs: the runs.
        stopping: returns whether the server is shutting down.
    """

    def __init__(self, runs: Runs, stopping: Callable[[], bool]) -> None:
        self._runs, self._stopping = runs, stopping
        self._refreshed = -_PERIOD
        self._pending = True
        self._lock = asyncio.Lock()

    async def events(self) -> AsyncIterator[bytes]:
        """Yield server-sent events: the runs that have changed, and those that are gone.

        The first event lists all runs, for a page that reconnects.
        """
        sent: dict[str, int] = {}
        is_first = True
        sent_at = monotonic()
        yield b"retry: 1000\n\n"
        while not self._stopping():
            await self._refresh()
            message = await run_in_threadpool(self._changes, sent, is_first)
            if message is not None:
                yield message
                is_first = False
                sent_at = monotonic()
            elif monotonic() - sent_at > _SILENCE:
                yield b": keep-alive\n\n"
                sent_at = monotonic()
            await asyncio.sleep(0.05 if self._pending else _PERIOD / 4)

    async def _refresh(self) -> None:
        """Refresh the runs if the last refresh is more than a second ago."""
        async with self._lock:
            if self._pending or monotonic() - self._refreshed >= _PERIOD:
                self._pending = await run_in_threadpool(self._runs.refresh)
                self._refreshed = monotonic()
                if not self._pending:
                    await run_in_threadpool(self._runs.save_indexes)

    def _changes(self, sent: dict[str, int], is_first: bool) -> bytes | None:
        views = {view.id: view for view in self._runs}
        changed = [view for id, view in views.items() if sent.get(id, 0) != view.version]
        gone = [id for id in sent if id not in views]
        if not changed and not gone and not is_first:
            return None
        for id in gone:
            del sent[id]
        sent |= {view.id: view.version for view in changed}
        known = [*views] if is_first else None
        changes = {"runs": [view.summary() for view in changed], "gone": gone, "known": known}
        return b"event: runs\ndata: " + orjson.dumps(changes) + b"\n\n"
