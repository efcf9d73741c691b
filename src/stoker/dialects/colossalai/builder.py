"""Building what ``dict(type='Name', …)`` describes."""

from collections.abc import Mapping
from typing import Any

from stoker.config.signature import parameters
from stoker.dialects.colossalai.registry import HOOKS, Registry


def build_from_registry(config: Mapping[str, Any], registry: Registry, **supplied: Any) -> Any:
    """What a dict describes; the dict stays as it is.

    Args:
        config: "type", and the arguments.
        registry: where the type is looked up.
        supplied: further arguments, for a type that takes them.
    """
    if not isinstance(config, Mapping) or "type" not in config:
        raise TypeError(f"{config!r} describes no {registry.name}: expected dict(type='Name', …)")
    given = dict(config)
    kind = registry.get_module(given.pop("type"))
    taken = parameters(kind) or {}
    return kind(**{**{name: v for name, v in supplied.items() if name in taken}, **given})


def build_hooks(config: Mapping[str, Any], trainer: Any) -> Any:
    """A hook of a dict; one that wants its trainer gets it."""
    return build_from_registry(config, HOOKS, trainer=trainer)
