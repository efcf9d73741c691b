"""Build objects from ``dict(type='Name', …)``."""

from collections.abc import Mapping
from typing import Any

from stoker.config.check import parameters
from stoker.dialects.colossalai.registry import HOOKS, Registry


def build_from_registry(config: Mapping[str, Any], registry: Registry, **supplied: Any) -> Any:
    """Build the object that a dict describes, without changing the dict.

    Args:
        config: The ``type`` and its arguments.
        registry: Where to look up the type.
        supplied: Additional arguments, passed if the type accepts them.
    """
    if not isinstance(config, Mapping) or "type" not in config:
        raise TypeError(f"{config!r} is not a {registry.name}: expected dict(type='Name', …)")
    given = dict(config)
    kind = registry.get_module(given.pop("type"))
    taken = parameters(kind) or {}
    return kind(**{**{name: v for name, v in supplied.items() if name in taken}, **given})


def build_hooks(config: Mapping[str, Any], trainer: Any) -> Any:
    """Build a hook from a dict, and pass it the trainer if it accepts one."""
    return build_from_registry(config, HOOKS, trainer=trainer)
