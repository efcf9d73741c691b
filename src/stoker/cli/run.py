"""``stoker run``: a script for one of the older trainers, as it is."""

import argparse
import runpy
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

from stoker import launch
from stoker.cli.exit_codes import OK
from stoker.config.yaml_text import ConfigError
from stoker.trainer import Trainer


def run(options: argparse.Namespace) -> int:
    """Run the script; what it imports of an older trainer is found in the dialects."""
    script = Path(options.script)
    if not script.is_file():
        raise ConfigError(f"there is no script '{script}'")
    import_module("stoker.dialects.aliases").Dialects(prefer=options.prefer_dialects).install()
    if options.explain:
        Trainer.fit = _explain  # type: ignore[method-assign]
        launch.run = _here  # type: ignore[assignment]
    sys.argv = [str(script), *options.args]
    sys.path.insert(0, str(script.parent.absolute()))
    try:
        runpy.run_path(str(script), run_name="__main__")
    except _Explained as explained:  # here, wherever the script lets its output go
        print(explained.text)
    return OK


class _Explained(SystemExit):
    """Ends the script before its first training."""

    def __init__(self, text: str) -> None:
        super().__init__(OK)
        self.text = text


def _explain(self: Trainer, *_: Any, **__: Any) -> NoReturn:
    """In place of the first training of the script."""
    raise _Explained(import_module("stoker.dialects.adapter").explain(self))


def _here(function: Callable[..., Any], *arguments: Any, **_: Any) -> Any:
    """In place of starting processes: what each of them would do, as the only one."""
    return function(*arguments)
