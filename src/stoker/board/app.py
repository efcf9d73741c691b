"""The HTTP API of the board, and who may use it."""

import hmac
import ipaddress
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from http.cookies import CookieError, SimpleCookie
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import orjson
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import (
    FileResponse,
    PlainTextResponse,
    RedirectResponse,
    Response,
    StreamingResponse,
)
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from stoker.board.runs import Runs, Watch
from stoker.board.view import RunView
from stoker.rundir.metrics_index import AXES
from stoker.rundir.provenance import ABSENT, differences, format_value
from stoker.rundir.settings import column_keys, settings_of

_HEADERS = {
    "content-security-policy": "default-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
}


def is_loopback(host: str) -> bool:
    """Return whether a host name or address is this machine only."""
    try:
        return host == "localhost" or ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


class Guard:
    """Middleware that allows only reading, from known hosts or with a token, and sets headers.

    A web page elsewhere can point its own host name at this machine (DNS rebinding), so without a
    token only requests to the names of this machine are answered.

    Args:
        app: the app to protect.
        token: the token that visitors must present, once as ``/?token=…`` and then as a cookie;
            None lets everybody in.
    """

    def __init__(self, app: ASGIApp, token: str | None = None) -> None:
        self._app, self._token = app, token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Reject the request or pass it to the app."""
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self._app(scope, receive, send)
            return
        rejection = self._rejection(scope)

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(_HEADERS)
            await send(message)

        await (rejection or self._app)(scope, receive, guarded)

    def _rejection(self, scope: Scope) -> Response | None:
        if scope["method"] not in ("GET", "HEAD"):
            return _reject(405, "the board is read-only: use GET or HEAD")
        headers = Headers(scope=scope)
        if self._token is None:
            host = _name(headers.get("host", ""))
            return (
                None
                if is_loopback(host)
                else _reject(421, "unknown host name: open the address that stoker board printed")
            )
        given = parse_qs(scope["query_string"].decode("latin-1")).get("token", [""])[0]
        cookie = self._cookie_name(scope)
        if scope["path"] == "/" and self._matches(given):
            answer = RedirectResponse("/", 303)
            answer.set_cookie(cookie, given, httponly=True, samesite="strict")
            return answer
        presented = (
            _cookie(headers, cookie),
            headers.get("authorization", "").removeprefix("Bearer "),
        )
        if not any(self._matches(one) for one in presented):
            return _reject(
                403, "token missing or wrong: open the address that stoker board printed"
            )
        return None

    def _matches(self, token: str) -> bool:
        assert self._token is not None
        return hmac.compare_digest(token.encode("utf-8", "replace"), self._token.encode())

    def _cookie_name(self, scope: Scope) -> str:
        server = scope.get("server") or ("", 0)
        return f"stoker-board-{server[1]}"  # browsers share cookies between ports


def _reject(status: int, why: str) -> Response:
    return PlainTextResponse(why + "\n", status)


def _name(host: str) -> str:
    """Return a host without its port."""
    if host.startswith("["):
        return host.partition("]")[0] + "]"
    return host.partition(":")[0]


def _cookie(headers: Headers, name: str) -> str:
    try:
        found = SimpleCookie(headers.get("cookie", "")).get(name)
    except CookieError:
        return ""
    return found.value if found is not None else ""


STATIC = Path(__file__).parent / "static"
_MOST_NAMES = 64
_MOST_COLUMNS = 200
_MOST_POINTS = 20_000
_LOG_BYTES = 1 << 16


def make_app(
    runs: Runs, token: str | None = None, stopping: Callable[[], bool] = lambda: False
) -> Starlette:
    """Return the board as an ASGI app.

    Args:
        runs: the runs to show.
        token: the token that visitors must present; None lets everybody in.
        stopping: returns whether the server is shutting down, so that open streams end.
    """
    watch = Watch(runs, stopping)

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        yield
        await run_in_threadpool(runs.save_indexes)

    async def stream(request: Request) -> Response:
        if request.method == "HEAD":
            return Response(media_type="text/event-stream")
        return StreamingResponse(watch.events(), media_type="text/event-stream", headers=_FRESH)

    api = _Api(runs)
    routes: list[BaseRoute] = [
        Route("/", _index),
        Route("/api/stream", stream),
        *(Route(f"/api/{name}", _endpoint(call)) for name, call in api.calls().items()),
        Route("/api/image", _endpoint(api.image)),
        Mount("/assets", StaticFiles(directory=STATIC / "assets")),
        Route("/icon.svg", _icon),
    ]
    app = Starlette(routes=routes, lifespan=lifespan, middleware=[Middleware(Guard, token=token)])
    app.state.watch = watch
    return app


class _Api:
    """The calls of the page; each takes a request and returns what becomes JSON."""

    def __init__(self, runs: Runs) -> None:
        self._runs = runs

    def calls(self) -> dict[str, Callable[[Request], Any]]:
        """Return the calls by the last part of their path."""
        names = ("runs", "run", "series", "log", "timeline", "compare", "table", "verify")
        return {name: getattr(self, name) for name in names}

    def runs(self, _: Request) -> Any:
        """Return a summary of every run."""
        self._runs.refresh()
        return {"root": _utf8(self._runs.root), "runs": [view.summary() for view in self._runs]}

    def run(self, request: Request) -> Any:
        """Return the details of one run."""
        view = self._view(request)
        view.refresh()
        return view.details()

    def series(self, request: Request) -> Any:
        """Return curves of one run."""
        query = request.query_params
        view = self._view(request)
        view.refresh(0.05)
        axis = query.get("x", "step")
        if axis not in AXES:
            raise HTTPException(400, f"x must be one of {', '.join(AXES)}")
        start, end = _number(query.get("from")), _number(query.get("to"))
        points = max(16, min(_MOST_POINTS, int(_number(query.get("points")) or 1500)))
        names = query.getlist("name")[:_MOST_NAMES]
        curves = view.curves
        found = {name: curves.window(name, axis, points, start, end) for name in names}
        about = {"id": view.id, "version": view.version, "began": curves.began}
        return about | {"series": found}

    def log(self, request: Request) -> Any:
        """Return the end of the log of one run."""
        lines, is_cut = self._view(request).reader.log(_LOG_BYTES)
        return {"lines": lines, "cut": is_cut}

    def timeline(self, request: Request) -> Any:
        """Return goodput, attempts and events of one run."""
        return self._view(request).timeline()

    def compare(self, request: Request) -> Any:
        """Return the results of runs, and the settings in which they differ."""
        views = [self._found(id) for id in request.query_params.getlist("run")[:50]]
        for view in views:
            view.refresh()
        rows = [
            {"key": key, "values": [None if v is ABSENT else format_value(v) for v in values]}
            for key, values in differences([settings_of(view.config) for view in views])
        ]
        runs = [
            view.results() | {"config": {}, "bests": view.best_results()} | _shares(view)
            for view in views
        ]
        return {"runs": runs, "rows": rows}

    def table(self, _: Request) -> Any:
        """Return every run with its results and the settings to compare runs by."""
        rows = self._runs.table()
        keys = column_keys([row["config"] for row in rows])[:_MOST_COLUMNS]
        for row in rows:
            row["config"] = {key: row["config"].get(key) for key in keys if key in row["config"]}
        return {"keys": keys, "rows": rows}

    def verify(self, request: Request) -> Any:
        """Return a checkpoint after checking every byte of it."""
        view = self._view(request)
        try:
            info = view.reader.verify(request.query_params.get("checkpoint", ""))
            return vars(info) | {"state": info.state}
        except (OSError, ValueError):
            raise HTTPException(404, "there is no such checkpoint") from None

    def image(self, request: Request) -> Response:
        """Return an image that the run logged."""
        data = self._view(request).reader.image(request.query_params.get("file", ""))
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


def _shares(view: RunView) -> dict[str, Any]:
    """Return the seconds of a run over all its attempts, and the useful share of them."""
    timeline = view.timeline()
    return {"goodput": timeline["goodput"], "seconds": sum(timeline["seconds"].values())}


_FRESH = {"cache-control": "no-store"}


def _endpoint(call: Callable[[Request], Any]) -> Callable[[Request], Any]:
    """Return an endpoint that makes a call in a thread, so that it does not block the others."""

    async def answer(request: Request) -> Response:
        result = await run_in_threadpool(call, request)
        if isinstance(result, Response):
            return result
        return Response(encode(result), media_type="application/json", headers=_FRESH)

    return answer


def encode(result: Any) -> bytes:
    """Return JSON; numbers that are not finite become null."""
    return orjson.dumps(result, option=orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_NON_STR_KEYS)


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
        raise HTTPException(400, "from, to and points must be numbers") from None
    return found if abs(found) < 1e300 else None


def _utf8(path: Path) -> str:
    return str(path).encode("utf-8", "replace").decode()
