"""``stoker board``: serve a live dashboard of runs."""

import argparse
import secrets
import sys
import threading
import time
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

from stoker.cli.common import FAILED, OK, given_path
from stoker.cli.output import emit
from stoker.core.errors import ConfigError, did_you_mean_path
from stoker.storage import url_of

_PACKAGES = ("starlette", "uvicorn", "orjson")

_REFRESH = 10.0
"""Seconds between two copies of what is new in a store."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument(
        "runs",
        nargs="?",
        default="runs",
        metavar="RUNS",
        help="A folder of runs, or a run. Default: runs.",
    )
    parser.add_argument(
        "--host",
        default="127.0.0.1",
        help="Address to listen on. Default: 127.0.0.1. Any other address needs --token.",
    )
    parser.add_argument("--port", type=int, help="Port. Default: the first free one from 6780.")
    parser.add_argument(
        "--token",
        nargs="?",
        const="",
        metavar="TOKEN",
        help="Require this token from visitors. Without a value, generate one.",
    )
    parser.add_argument("--open", action="store_true", help="Open the board in the browser.")


def run(options: argparse.Namespace) -> int:
    """Serve until Ctrl-C."""
    missing = [name for name in _PACKAGES if find_spec(name) is None]
    if missing:
        print(
            f"stoker: the board needs {' and '.join(missing)}: pip install 'stoker[board]'",
            file=sys.stderr,
        )
        return FAILED
    root = _root(options.runs)
    from stoker.board.app import is_loopback
    from stoker.board.serve import bind, open_browser, serve

    token = options.token or (secrets.token_urlsafe(16) if options.token is not None else None)
    if not is_loopback(options.host) and token is None:
        raise ConfigError(
            f"--host {options.host} is reachable from other machines: pass --token as well"
        )
    if options.port is not None and not 0 <= options.port < 65536:
        raise ConfigError(f"--port must be between 0 and 65535, got {options.port}")
    try:
        listener = bind(options.host, options.port)
    except OSError as error:
        where = f"{options.host}:{options.port or 6780}"
        raise ConfigError(f"cannot listen on {where}: {error.strerror}") from error
    host = f"[{options.host}]" if ":" in options.host else options.host
    address = f"http://{host}:{listener.getsockname()[1]}/" + (f"?token={token}" if token else "")

    def ready() -> None:
        text = f"the board of {root} is at {address} (Ctrl-C to stop)"
        emit("board", text, runs=root, url=address)
        if options.open:
            open_browser(address)

    if url_of(root) is not None:
        threading.Thread(target=_keep_fresh, args=(root,), daemon=True).start()
    serve(root, listener, token, ready)
    return OK


def _keep_fresh(root: Path) -> None:
    """Copy what is new in a store, again and again."""
    from stoker.storage.mirror import refresh

    while True:
        time.sleep(_REFRESH)
        with suppress(OSError):  # the store may answer the next time
            refresh(root)


def _root(given: str) -> Path:
    path = given_path(given, "the folder of runs")
    if not path.exists():
        near = did_you_mean_path(path)
        raise ConfigError(f"there is no folder '{path}'{near} (stoker train writes to 'runs')")
    if not path.is_dir():
        raise ConfigError(f"'{path}' is a file, expected a folder of runs")
    return path
