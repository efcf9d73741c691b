"""Access control: allowed hosts, the token, and strict response headers."""

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
