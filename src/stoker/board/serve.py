"""Serving the board: an address, a port that is free, and a quiet end."""

import errno
import os
import socket
import sys
import threading
import webbrowser
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import uvicorn

from stoker.board.app import make_app
from stoker.board.runs import Runs, tidy

PORT = 6780
_TRIES = 20


def bound(host: str, port: int | None) -> socket.socket:
    """A socket at a port: the one that is asked for, or the first free one from 6780 on.

    Raises:
        OSError: it is taken, or there is no such address here.
    """
    wanted = [port] if port is not None else range(PORT, PORT + _TRIES)
    family, _, _, _, _ = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0]
    for number in wanted:
        one = socket.socket(family, socket.SOCK_STREAM)
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            one.bind((host, number))
            one.listen(128)
        except OSError as error:
            one.close()
            if error.errno != errno.EADDRINUSE or number == wanted[-1]:
                raise
        else:
            return one
    raise AssertionError("there is always a last port")


def serve(
    root: Path,
    at: socket.socket,
    token: str | None = None,
    ready: Callable[[], None] = lambda: None,
) -> None:
    """Serve until a signal to end comes.

    Args:
        root: the runs folder.
        at: where to listen.
        token: what visitors must bring; None asks for none.
        ready: called when pages are answered.
    """
    server: _Server | None = None
    cache = cache_folder()
    tidy(cache)
    app = make_app(Runs(root, cache), token, lambda: server is not None and server.should_exit)
    settings = uvicorn.Config(
        app, log_level="critical", access_log=False, ws="none", timeout_graceful_shutdown=2
    )
    server = _Server(settings, ready)
    with suppress(KeyboardInterrupt):  # uvicorn raises the signal again once it has ended
        server.run(sockets=[at])


class _Server(uvicorn.Server):
    """Tells when it is ready."""

    def __init__(self, settings: uvicorn.Config, ready: Callable[[], None]) -> None:
        super().__init__(settings)
        self._ready = ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self._ready()


def cache_folder() -> Path:
    """Where indexes of large files are kept between visits."""
    usual = "~/Library/Caches" if sys.platform == "darwin" else "~/.cache"
    base = Path(os.environ.get("XDG_CACHE_HOME") or usual)
    return base.expanduser() / "stoker" / "board"


def open_browser(address: str) -> None:
    """Show a page in the browser, without waiting for it."""
    threading.Thread(target=webbrowser.open, args=(address,), daemon=True).start()
