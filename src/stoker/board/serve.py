"""Serve the board: find a free port, run the server, shut down quietly."""

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
from stoker.board.runs import Runs, remove_old_indexes

PORT = 6780
_TRIES = 20


def bind(host: str, port: int | None) -> socket.socket:
    """Return a socket that listens on a port, or on the first free one from 6780 on.

    Raises:
        OSError: the port is taken, or the host is not an address of this machine.
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
    """Serve until a signal ends the server.

    Args:
        root: the folder of runs.
        at: the socket to listen on.
        token: the token that visitors must present; None lets everybody in.
        ready: called when the server answers requests.
    """
    server: _Server | None = None
    cache = cache_folder()
    remove_old_indexes(cache)
    app = make_app(Runs(root, cache), token, lambda: server is not None and server.should_exit)
    settings = uvicorn.Config(
        app, log_level="critical", access_log=False, ws="none", timeout_graceful_shutdown=2
    )
    server = _Server(settings, ready)
    with suppress(KeyboardInterrupt):  # uvicorn raises the signal again once it has ended
        server.run(sockets=[at])


class _Server(uvicorn.Server):
    """Calls ``ready`` when it answers requests."""

    def __init__(self, settings: uvicorn.Config, ready: Callable[[], None]) -> None:
        super().__init__(settings)
        self._ready = ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self._ready()


def cache_folder() -> Path:
    """Return the folder in the user's cache for indexes of large files."""
    usual = "~/Library/Caches" if sys.platform == "darwin" else "~/.cache"
    base = Path(os.environ.get("XDG_CACHE_HOME") or usual)
    return base.expanduser() / "stoker" / "board"


def open_browser(address: str) -> None:
    """Open a page in the browser without waiting for it."""
    threading.Thread(target=webbrowser.open, args=(address,), daemon=True).start()
