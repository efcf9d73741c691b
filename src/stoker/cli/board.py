"""``stoker board``: a page that shows runs while they live."""

import argparse
import secrets
import sys
from importlib.util import find_spec
from pathlib import Path

from stoker.cli.exit_codes import FAILED, OK
from stoker.config.yaml_text import ConfigError
from stoker.core.errors import did_you_mean
from stoker.storage import local_path


def add_board(command: argparse.ArgumentParser) -> None:
    """The options of the command."""
    command.add_argument(
        "runs", nargs="?", default="runs", metavar="RUNS", help="a folder of runs, or a run (runs)"
    )
    command.add_argument(
        "--host", default="127.0.0.1", help="where to listen (127.0.0.1); elsewhere needs --token"
    )
    command.add_argument("--port", type=int, help="the port; else the first free one from 6780 on")
    command.add_argument(
        "--token",
        nargs="?",
        const="",
        metavar="WORD",
        help="what visitors must bring; without a word, one is made up",
    )
    command.add_argument("--open", action="store_true", help="show it in the browser")


_NEEDED = ("starlette", "uvicorn", "orjson")


def board(options: argparse.Namespace) -> int:
    """Serve until Ctrl-C."""
    missing = [name for name in _NEEDED if find_spec(name) is None]
    if missing:
        print(
            f"stoker: the board needs {' and '.join(missing)}: pip install 'stoker[board]'",
            file=sys.stderr,
        )
        return FAILED
    root = _root(options.runs)
    from stoker.board.security import is_loopback
    from stoker.board.serve import bind, open_browser, serve

    token = options.token or (secrets.token_urlsafe(16) if options.token is not None else None)
    if not is_loopback(options.host) and token is None:
        raise ConfigError(
            f"--host {options.host} can be reached from other machines: give --token, too"
        )
    if options.port is not None and not 0 <= options.port < 65536:
        raise ConfigError(f"--port is a number from 0 to 65535, got {options.port}")
    try:
        at = bind(options.host, options.port)
    except OSError as error:
        where = f"{options.host}:{options.port or 6780}"
        raise ConfigError(f"the board cannot listen at {where}: {error.strerror}") from error
    host = f"[{options.host}]" if ":" in options.host else options.host
    address = f"http://{host}:{at.getsockname()[1]}/" + (f"?token={token}" if token else "")

    def ready() -> None:
        print(f"the board of {root} is at {address} (Ctrl-C ends it)", flush=True)
        if options.open:
            open_browser(address)

    serve(root, at, token, ready)
    return OK


def _root(given: str) -> Path:
    path = local_path(given, "the folder of runs")
    if not path.exists():
        beside = [one.name for one in path.parent.iterdir()] if path.parent.is_dir() else []
        near = did_you_mean(path.name, beside)
        raise ConfigError(f"there is no folder '{path}'{near} (stoker train makes runs in 'runs')")
    if not path.is_dir():
        raise ConfigError(f"'{path}' is a file, expected a folder of runs")
    return path
