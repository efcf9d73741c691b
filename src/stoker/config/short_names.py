"""Expand short names: ``type: Adam`` below ``optimizer`` becomes a node."""

from typing import Any

from stoker.config.lazy import Lazy, Section, children, rebuilt
from stoker.config.registry import BY_KEY, METRICS, Registry, RegistryError
from stoker.config.resolve import has_references


def registry_at(path: list[str]) -> Registry | None:
    """Return the registry for short names at a path, or None."""
    depth = len(path) - (path[0] in ("hooks", "optimizer", "lr_scheduler", "val_loader"))
    if path[0] == "hooks" and depth > 1:
        return METRICS
    return BY_KEY.get(path[0]) if depth in (0, 1) else None


def expanded(tree: Section, faults: list[str]) -> Section:
    """Return a copy of a tree with nodes for short names; append unknown names to ``faults``."""
    copy = Section(where=tree.where)
    copy.origins = dict(tree.origins)
    seen: dict[int, Any] = {}
    for key, value in tree.items():
        copy[key] = _expanded(value, [key], tree.origin(key), faults, seen)
    return copy


def _expanded(
    value: Any,
    path: list[str],
    place: str,
    faults: list[str],
    seen: dict[int, Any],
    in_a_group: bool = False,
) -> Any:
    if isinstance(value, dict | list | tuple):
        if id(value) not in seen:
            place = getattr(value, "where", "") or place
            seen[id(value)] = _container(value, path, place, faults, seen)
        return seen[id(value)]
    at_top = len(path) == 1 or (len(path) == 2 and in_a_group)
    registry = registry_at(path)
    if isinstance(value, str) and not has_references(value) and at_top and registry:
        return _node(value, {}, registry, place, faults)
    return value


def _container(
    value: Any, path: list[str], place: str, faults: list[str], seen: dict[int, Any]
) -> Any:
    below = iter([[*path, str(key)] for key, _ in children(value)])
    one_call = isinstance(value, Lazy) or (isinstance(value, dict) and "type" in value)
    expanded_value = rebuilt(
        value, lambda item: _expanded(item, next(below), place, faults, seen, not one_call)
    )
    registry = registry_at(path)
    if (
        registry is None
        or not isinstance(expanded_value, Section)
        or isinstance(expanded_value, Lazy)
    ):
        return expanded_value
    if not isinstance(expanded_value.get("type"), str):
        return expanded_value
    arguments = {key: item for key, item in expanded_value.items() if key not in ("type", "_args_")}
    node = _node(expanded_value["type"], arguments, registry, place, faults)
    if isinstance(node, Lazy):
        node.origins = expanded_value.origins
        node.args = expanded_value.get("_args_", [])
    return node


def _node(
    name: str, arguments: dict[str, Any], registry: Registry, place: str, faults: list[str]
) -> Any:
    try:
        return Lazy(registry.get(name), kwargs=arguments, where=place)
    except RegistryError as error:
        faults.append(f"{place}: {error}")
        return None
