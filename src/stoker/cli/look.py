"""``stoker config``, ``hooks``, ``metrics`` and ``env``: what there is."""

import argparse
import inspect
import json

from stoker.cli.main import OK
from stoker.config import HOOKS, ConfigError, load
from stoker.errors import did_you_mean


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
    if options.name not in HOOKS:
        raise ConfigError(f"there is no hook '{options.name}'{did_you_mean(options.name, HOOKS)}")
    hook = HOOKS.get(options.name)
    print(f"{options.name}{inspect.signature(hook)}\n\n{inspect.getdoc(hook)}")
    return OK


def metrics(options: argparse.Namespace) -> int:
    """List the metrics, or describe one."""
    from stoker import metrics as known

    names = known.available()
    if options.name is None:
        print("\n".join(names))
        return OK
    if options.name not in names:
        raise ConfigError(f"there is no metric '{options.name}'{did_you_mean(options.name, names)}")
    kind = known.kind_of(options.name)
    print(f"{options.name}{inspect.signature(kind)}\n\n{inspect.getdoc(kind)}")
    return OK


def env(options: argparse.Namespace) -> int:
    """Print what ``env.json`` would hold."""
    from stoker.provenance import environment

    found = environment()
    if found["git"] is not None:
        found["git"].pop("diff")
    print(json.dumps(found, indent=2))
    return OK


def _first_line(thing: object) -> str:
    return (inspect.getdoc(thing) or "").partition("\n")[0]
