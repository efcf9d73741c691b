"""``stoker schema``: print the JSON schema of what ``--json`` prints."""

import argparse
import json
from importlib.resources import files
from typing import Any

from stoker.cli.common import OK
from stoker.cli.output import emit


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare no options."""


def run(options: argparse.Namespace) -> int:
    """Print the schema."""
    schema = load()
    emit("schema", json.dumps(schema, indent=2), schema=schema)
    return OK


def load() -> dict[str, Any]:
    """Return the schema."""
    text = (files("stoker.cli") / "schema.json").read_text(encoding="utf-8")
    schema: dict[str, Any] = json.loads(text)
    return schema
