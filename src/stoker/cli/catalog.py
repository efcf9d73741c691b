"""``stoker hooks`` and ``stoker metrics``: list the available ones, or describe one."""

import argparse
import inspect

from stoker.cli.common import OK, frozen_imports
from stoker.cli.output import emit
from stoker.core.errors import ConfigError, did_you_mean


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("name", nargs="?", metavar="NAME", help="Describe this one.")


def run(options: argparse.Namespace) -> int:
    """Print the names, or the signature and documentation of one."""
    with frozen_imports():
        from stoker import metrics
        from stoker.config import HOOKS
    names = list(HOOKS) if options.command == "hooks" else metrics.available()
    get = HOOKS.get if options.command == "hooks" else metrics.metric_class
    name = options.name
    kind = options.command.removesuffix("s")
    if name is None:
        for one in names:
            summary = (inspect.getdoc(get(one)) or "").partition("\n")[0]
            text = f"{one:<16} {summary}" if kind == "hook" else one
            emit(kind, text, name=one, summary=summary)
        return OK
    if name not in names:
        raise ConfigError(f"there is no {kind} '{name}'{did_you_mean(name, names)}")
    signature, doc = str(inspect.signature(get(name))), inspect.getdoc(get(name)) or ""
    summary = doc.partition("\n")[0]
    text = f"{name}{signature}\n\n{doc}"
    emit(kind, text, name=name, summary=summary, signature=signature, doc=doc)
    return OK
