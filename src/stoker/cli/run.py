"""``stoker run``: run an unmodified script for one of the older trainers."""

import argparse
import runpy
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

from stoker.cli import launching
from stoker.cli.common import OK, frozen_imports
from stoker.cli.output import emit
from stoker.core.errors import ConfigError
from stoker.storage import local_path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument(
        "--prefer-dialects",
        action="store_true",
        help="Use the dialects even if the original package is installed.",
    )
    parser.add_argument(
        "--explain",
        action="store_true",
        help="Print which hooks act where, instead of training.",
    )
    parser.add_argument("--nproc", type=int, metavar="N", help="Processes on this machine.")
    launching.add_elastic(parser)
    parser.add_argument("script", metavar="SCRIPT", help="A Python file.")
    parser.add_argument(
        "args", metavar="ARGS", nargs=argparse.REMAINDER, help="Arguments of the script."
    )


def run(options: argparse.Namespace) -> int:
    """Run the script with the dialects in place of the packages that it imports."""
    script = local_path(options.script, "the script")
    if not script.is_file():
        what = "is a folder" if script.is_dir() else "does not exist"
        raise ConfigError(f"the script '{script}' {what}, expected a Python file")
    _check_syntax(script)
    if options.nproc is not None or options.elastic is not None:
        return _in_processes(options)
    with frozen_imports():
        import_module("stoker.dialects.aliases").Dialects(prefer=options.prefer_dialects).install()
        from stoker import Trainer, launch
    if options.explain:
        Trainer.fit = _explain  # type: ignore[assignment,method-assign]
        launch.run = _call  # type: ignore[assignment]
    sys.argv = [str(script), *options.args]
    sys.path.insert(0, str(script.parent.absolute()))
    try:
        runpy.run_path(str(script), run_name="__main__")
    except _Explained as explained:  # printed here, in case the script redirects its output
        emit("script", explained.text, script=script, explanation=explained.text)
    else:
        emit("script", script=script, explanation=None)
    return OK


def _in_processes(options: argparse.Namespace) -> int:
    """Run the script in several processes that find their ranks in the environment."""
    if options.explain:
        raise ConfigError("--explain does not train, so it needs no --nproc: remove one of them")
    with frozen_imports():
        from stoker import launch
    alone = argparse.Namespace(**{**vars(options), "nproc": None, "elastic": None})
    try:
        launch.run(run, alone, nproc=options.nproc, elastic=options.elastic)
    except ValueError as error:
        raise ConfigError(str(error)) from error
    return OK


def _check_syntax(script: Path) -> None:
    """Reject a file that is not Python."""
    instead = f"; use 'stoker train {script}'" if script.suffix in (".yaml", ".yml") else ""
    try:
        compile(script.read_bytes(), str(script), "exec", dont_inherit=True)
    except (SyntaxError, ValueError) as error:
        line = f":{error.lineno}" if isinstance(error, SyntaxError) and error.lineno else ""
        reason = getattr(error, "msg", error)
        raise ConfigError(f"{script}{line} is not a Python script: {reason}{instead}") from None


class _Explained(SystemExit):
    """Ends the script at its first training."""

    def __init__(self, text: str) -> None:
        super().__init__(OK)
        self.text = text


def _explain(trainer: Any, *_: Any, **__: Any) -> NoReturn:
    """Replace ``Trainer.fit``: explain instead of training."""
    raise _Explained(import_module("stoker.dialects.adapter").explain(trainer))


def _call(function: Callable[..., Any], *arguments: Any, **_: Any) -> Any:
    """Replace ``launch.run``: call the function here instead of starting processes."""
    return function(*arguments)
