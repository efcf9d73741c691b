"""`Watch`: refresh the runs once a second and stream changes to every open page."""

import asyncio
from collections.abc import AsyncIterator, Callable
from time import monotonic

import orjson
from starlette.concurrency import run_in_threadpool

from stoker.board.runs import Runs

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
