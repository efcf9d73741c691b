"""Who may ask, and what a browser may do with the answer."""

import hmac
import ipaddress
from http.cookies import CookieError, SimpleCookie
from urllib.parse import parse_qs

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

_HEADERS = {
    "content-security-policy": "default-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
}


def is_loopback(host: str) -> bool:
    """Whether a host is this machine alone."""
    try:
        return host == "localhost" or ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


class Guard:
    """Stands before the app: reads only, known hosts or a token, and strict headers.

    A page elsewhere can lead a browser here under a name of its own (DNS rebinding): without a
    token only the names of this machine are answered.

    Args:
        app: what is guarded.
        token: what a visitor must bring, once by ``/?token=…`` and then by a cookie; None asks
            for none.
    """

    def __init__(self, app: ASGIApp, token: str | None = None) -> None:
        self._app, self._token = app, token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, or let the app do so."""
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self._app(scope, receive, send)
            return
        refusal = self._refusal(scope)

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(_HEADERS)
            await send(message)

        await (refusal or self._app)(scope, receive, guarded)

    def _refusal(self, scope: Scope) -> Response | None:
        if scope["method"] not in ("GET", "HEAD"):
            return _no(405, "the board only reads")
        headers = Headers(scope=scope)
        if self._token is None:
            host = _name(headers.get("host", ""))
            return None if is_loopback(host) else _no(421, "the board does not go by this name")
        given = parse_qs(scope["query_string"].decode("latin-1")).get("token", [""])[0]
        cookie = self._cookie_name(scope)
        if scope["path"] == "/" and self._fits(given):
            answer = RedirectResponse("/", 303)
            answer.set_cookie(cookie, given, httponly=True, samesite="strict")
            return answer
        brought = (
            _cookie(headers, cookie),
            headers.get("authorization", "").removeprefix("Bearer "),
        )
        if not any(self._fits(one) for one in brought):
            return _no(403, "the board needs its token: open the address that stoker board printed")
        return None

    def _fits(self, token: str) -> bool:
        assert self._token is not None
        return hmac.compare_digest(token.encode("utf-8", "replace"), self._token.encode())

    def _cookie_name(self, scope: Scope) -> str:
        server = scope.get("server") or ("", 0)
        return f"stoker-board-{server[1]}"  # browsers share cookies between ports


def _no(status: int, why: str) -> Response:
    return PlainTextResponse(why + "\n", status)


def _name(host: str) -> str:
    """A host without its port."""
    if host.startswith("["):
        return host.partition("]")[0] + "]"
    return host.partition(":")[0]


def _cookie(headers: Headers, name: str) -> str:
    try:
        found = SimpleCookie(headers.get("cookie", "")).get(name)
    except CookieError:
        return ""
    return found.value if found is not None else ""
