"""``stoker run``: a script for one of the older trainers, as it is."""

import argparse
import runpy
import sys
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

from stoker.cli.main import OK
from stoker.config.text import ConfigError
from stoker.trainer import Trainer


def run(options: argparse.Namespace) -> int:
    """Run the script; what it imports of an older trainer is found in the dialects."""
    script = Path(options.script)
    if not script.is_file():
        raise ConfigError(f"there is no script '{script}'")
    import_module("stoker.dialects.aliases").Dialects(prefer=options.prefer_dialects).install()
    if options.explain:
        Trainer.fit = _explain  # type: ignore[method-assign]
    sys.argv = [str(script), *options.args]
    sys.path.insert(0, str(script.parent.absolute()))
    runpy.run_path(str(script), run_name="__main__")
    return OK


def _explain(self: Trainer, *_: Any, **__: Any) -> NoReturn:
    print(self.explain())
    raise SystemExit(OK)
