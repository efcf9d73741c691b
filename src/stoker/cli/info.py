"""``stoker config``, ``hooks``, ``metrics`` and ``env``: what there is."""

import argparse
import inspect
import json
from collections.abc import Callable, Iterable
from typing import Any

from stoker.cli.exit_codes import OK
from stoker.config import HOOKS, ConfigError, load
from stoker.core.errors import did_you_mean


def config(options: argparse.Namespace) -> int:
    """Print the resolved config, or where one value comes from."""
    found = load(options.config, options.overrides, allow=options.allow)
    if options.check:
        found.check()
    if options.why is not None:
        print(found.why(options.why))
    else:
        print(found.text(), end="")
    return OK


def hooks(options: argparse.Namespace) -> int:
    """List the hooks, or describe one."""
    if options.name is None:
        for name in HOOKS:
            print(f"{name:<16} {_first_line(HOOKS.get(name))}")
        return OK
    return _described("hook", options.name, HOOKS, HOOKS.get)


def metrics(options: argparse.Namespace) -> int:
    """List the metrics, or describe one."""
    from stoker import metrics as known

    names = known.available()
    if options.name is None:
        print("\n".join(names))
        return OK
    return _described("metric", options.name, names, known.metric_class)


def env(options: argparse.Namespace) -> int:
    """Print what ``env.json`` would hold."""
    from stoker.rundir.provenance import environment

    found = environment()
    if found["git"] is not None:
        found["git"].pop("diff")
    print(json.dumps(found, indent=2))
    return OK


def _described(what: str, name: str, names: Iterable[str], get: Callable[[str], Any]) -> int:
    if name not in list(names):
        raise ConfigError(f"there is no {what} '{name}'{did_you_mean(name, names)}")
    print(f"{name}{inspect.signature(get(name))}\n\n{inspect.getdoc(get(name))}")
    return OK


def _first_line(thing: object) -> str:
    return (inspect.getdoc(thing) or "").partition("\n")[0]
