"""``stoker new``: create a starter project."""

import argparse
import json
from importlib.resources import files
from pathlib import Path

from stoker.cli.common import OK
from stoker.cli.output import emit
from stoker.core.errors import ConfigError
from stoker.storage import local_path

_FILES = ("config.yaml", "net.py", "README.md", "AGENTS.md")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("folder", metavar="DIR", help="The folder to create.")


def run(options: argparse.Namespace) -> int:
    """Copy the starter project into a new folder."""
    folder = local_path(options.folder, "the folder")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(f"'{folder}' already exists and is not empty: choose another name")
    starter = files("stoker.cli") / "starter"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        name = folder.absolute().name
        for file in _FILES:
            text = (starter / f"{file}.txt").read_text(encoding="utf-8")
            (folder / file).write_text(
                text.replace("{name}", name).replace("{quoted}", json.dumps(name)), encoding="utf-8"
            )
    except OSError as error:
        raise ConfigError(f"'{folder}' cannot be created: {error.strerror}") from error
    lines = [f"{folder} is ready:", f"  cd {_quoted(folder)}", "  stoker train config.yaml"]
    emit("new", lines, folder=folder, files=list(_FILES))
    return OK


def _quoted(path: Path) -> str:
    return f"'{path}'" if " " in str(path) else str(path)
