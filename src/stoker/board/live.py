"""`Watch`: one look at all runs a second, told to every open page."""

import asyncio
from collections.abc import AsyncIterator, Callable
from time import monotonic

import orjson
from starlette.concurrency import run_in_threadpool

from stoker.board.runs import Runs

_PERIOD = 1.0
_SILENCE = 15.0


class Watch:
    """Looks at runs while a page is open, however many pages there are.

    Args:
        runs: what is looked at.
        stopping: tells that the server is to end.
    """

    def __init__(self, runs: Runs, stopping: Callable[[], bool]) -> None:
        self._runs, self._stopping = runs, stopping
        self._looked_at = -_PERIOD
        self._pending = True
        self._turn = asyncio.Lock()

    async def events(self) -> AsyncIterator[bytes]:
        """Server-sent events: the runs that have changed, and those that are gone.

        The first one names all there are, for a page that comes back.
        """
        sent: dict[str, int] = {}
        is_first = True
        spoke = monotonic()
        yield b"retry: 1000\n\n"
        while not self._stopping():
            await self._look()
            message = await run_in_threadpool(self._news, sent, is_first)
            if message is not None:
                yield message
                is_first = False
                spoke = monotonic()
            elif monotonic() - spoke > _SILENCE:
                yield b": still here\n\n"
                spoke = monotonic()
            await asyncio.sleep(0.05 if self._pending else _PERIOD / 4)

    async def _look(self) -> None:
        """Look again if the last look is some time ago; pages share it."""
        async with self._turn:
            if self._pending or monotonic() - self._looked_at >= _PERIOD:
                self._pending = await run_in_threadpool(self._runs.look)
                self._looked_at = monotonic()
                if not self._pending:
                    await run_in_threadpool(self._runs.keep)

    def _news(self, sent: dict[str, int], is_first: bool) -> bytes | None:
        views = {view.id: view for view in self._runs}
        changed = [view for id, view in views.items() if sent.get(id, 0) != view.version]
        gone = [id for id in sent if id not in views]
        if not changed and not gone and not is_first:
            return None
        for id in gone:
            del sent[id]
        sent |= {view.id: view.version for view in changed}
        known = [*views] if is_first else None
        news = {"runs": [view.summary() for view in changed], "gone": gone, "known": known}
        return b"event: runs\ndata: " + orjson.dumps(news) + b"\n\n"
