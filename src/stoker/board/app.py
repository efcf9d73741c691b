"""The addresses of the board, and what each of them answers."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import orjson
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import FileResponse, Response, StreamingResponse
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles

from stoker.board.downsample import AXES
from stoker.board.live import Watch
from stoker.board.runs import Runs
from stoker.board.saves import verified
from stoker.board.security import Guard
from stoker.board.settings import differences
from stoker.board.view import RunView

STATIC = Path(__file__).parent / "static"
_MOST_NAMES = 64
_MOST_POINTS = 20_000
_LOG_BYTES = 1 << 16


def make_app(
    runs: Runs, token: str | None = None, stopping: Callable[[], bool] = lambda: False
) -> Starlette:
    """The board as an ASGI app.

    Args:
        runs: what it shows.
        token: what visitors must bring; None asks for none.
        stopping: tells that the server is to end, so that open streams end, too.
    """
    watch = Watch(runs, stopping)

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        yield
        await run_in_threadpool(runs.keep)

    async def stream(request: Request) -> Response:
        if request.method == "HEAD":
            return Response(media_type="text/event-stream")
        return StreamingResponse(watch.events(), media_type="text/event-stream", headers=_FRESH)

    api = _Api(runs)
    routes: list[BaseRoute] = [
        Route("/", _index),
        Route("/api/stream", stream),
        *(Route(f"/api/{name}", _answering(call)) for name, call in api.calls().items()),
        Route("/api/image", _answering(api.image)),
        Mount("/assets", StaticFiles(directory=STATIC / "assets")),
        Route("/icon.svg", _icon),
    ]
    app = Starlette(routes=routes, lifespan=lifespan, middleware=[Middleware(Guard, token=token)])
    app.state.watch = watch
    return app


class _Api:
    """Answers from runs; each call takes a request and gives what becomes JSON."""

    def __init__(self, runs: Runs) -> None:
        self._runs = runs

    def calls(self) -> dict[str, Callable[[Request], Any]]:
        """The calls by the last part of their address."""
        names = ("runs", "run", "series", "log", "diff", "table", "verify")
        return {name: getattr(self, name) for name in names}

    def runs(self, _: Request) -> Any:
        """Every run in a line."""
        self._runs.look()
        return {"root": _shown(self._runs.root), "runs": [view.summary() for view in self._runs]}

    def run(self, request: Request) -> Any:
        """All about one run."""
        view = self._view(request)
        view.look()
        return view.details()

    def series(self, request: Request) -> Any:
        """Curves of one run."""
        asked = request.query_params
        view = self._view(request)
        view.look(0.05)
        axis = asked.get("x", "step")
        if axis not in AXES:
            raise HTTPException(400, f"x is one of {', '.join(AXES)}")
        start, end = _number(asked.get("from")), _number(asked.get("to"))
        points = max(16, min(_MOST_POINTS, int(_number(asked.get("points")) or 1500)))
        names = asked.getlist("name")[:_MOST_NAMES]
        curves = view.curves
        found = {name: curves.window(name, axis, points, start, end) for name in names}
        return {"id": view.id, "version": view.version, "series": found}

    def log(self, request: Request) -> Any:
        """The tail of its log."""
        view = self._view(request)
        text = view.folder.tail("log.txt", _LOG_BYTES).decode(errors="replace")
        lines = text.split("\n")
        cut = len(text.encode()) >= _LOG_BYTES
        return {"lines": lines[1:] if cut else lines, "cut": cut}

    def diff(self, request: Request) -> Any:
        """What differs between the configs of runs."""
        views = [self._found(id) for id in request.query_params.getlist("run")[:50]]
        for view in views:
            view.look()
        return {"runs": [v.id for v in views], "rows": differences([v.config for v in views])}

    def table(self, _: Request) -> Any:
        """Every run with what differs between their configs, and its results."""
        rows = self._runs.table()
        keys = [row["key"] for row in differences([row["config"] for row in rows])]
        for row in rows:
            row["config"] = {key: row["config"].get(key) for key in keys if key in row["config"]}
        return {"keys": keys, "rows": rows}

    def verify(self, request: Request) -> Any:
        """A checkpoint, read to the last byte."""
        view = self._view(request)
        try:
            return verified(view.folder, request.query_params.get("checkpoint", ""))
        except (OSError, ValueError):
            raise HTTPException(404, "there is no such checkpoint") from None

    def image(self, request: Request) -> Response:
        """An image that the run logged."""
        data = self._view(request).image(request.query_params.get("file", ""))
        if data is None:
            raise HTTPException(404, "there is no such image")
        return Response(data, media_type="image/png")

    def _view(self, request: Request) -> RunView:
        return self._found(request.query_params.get("run", ""))

    def _found(self, id: str) -> RunView:
        try:
            return self._runs[id]
        except KeyError:
            raise HTTPException(404, "there is no such run") from None


_FRESH = {"cache-control": "no-store"}


def _answering(call: Callable[[Request], Any]) -> Callable[[Request], Any]:
    """An address from a call: it works in a thread, so that the others are served meanwhile."""

    async def answer(request: Request) -> Response:
        found = await run_in_threadpool(call, request)
        if isinstance(found, Response):
            return found
        return Response(encoded(found), media_type="application/json", headers=_FRESH)

    return answer


def encoded(found: Any) -> bytes:
    """JSON; what is no finite number becomes null."""
    return orjson.dumps(found, option=orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_NON_STR_KEYS)


async def _index(_: Request) -> Response:
    return FileResponse(STATIC / "index.html", headers={"cache-control": "no-cache"})


async def _icon(_: Request) -> Response:
    return FileResponse(STATIC / "icon.svg")


def _number(text: str | None) -> float | None:
    if not text:
        return None
    try:
        found = float(text)
    except ValueError:
        raise HTTPException(400, "from, to and points are numbers") from None
    return found if abs(found) < 1e300 else None


def _shown(path: Path) -> str:
    return str(path).encode("utf-8", "replace").decode()
