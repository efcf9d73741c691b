"""Dotted paths into a config: ``optimizer.lr``, ``hooks.1.patience``."""

from typing import Any

from stoker.config.lazy import Lazy, children
from stoker.core.errors import did_you_mean


class NoSuchPlaceError(KeyError):
    """A path that does not exist. The message says how far it led and what is there."""

    def __str__(self) -> str:
        return str(self.args[0])


def split(path: str) -> list[str]:
    """Return the keys of a dotted path; ``a[0].b`` is ``a.0.b``."""
    return path.replace("[", ".").replace("]", "").split(".")


def part(value: Any, key: str, at: str) -> Any:
    """Return the item of a container by key."""
    found = key_in(value, key)
    if found is None:
        here = f"'{at}'" if at else "the config"
        if not isinstance(value, dict | list | tuple):
            raise NoSuchPlaceError(f"{here} is {value!r}, which has no '{key}' in it")
        keys = [str(name) for name, _ in children(value)]
        there = f" (available: {', '.join(keys)})" if keys else " (it is empty)"
        raise NoSuchPlaceError(f"{here} has no '{key}'{did_you_mean(key, keys)}{there}")
    return found[0]


def key_in(value: Any, key: str) -> tuple[Any] | None:
    """Return the item named ``key`` as a one-element tuple, or None."""
    for name, item in children(value):
        if str(name) == key:
            return (item,)
    return None


def get(tree: Any, path: str) -> Any:
    """Return the value at a path."""
    at: list[str] = []
    for key in split(path):
        tree = part(tree, key, ".".join(at))
        at.append(key)
    return tree


def put(owner: Any, key: str, value: Any, origin: str) -> None:
    """Set an item of a container."""
    if isinstance(owner, Lazy) and key.isdigit():
        owner.args[int(key)] = value
    elif isinstance(owner, dict):
        real = next((name for name in owner if str(name) == key), key)
        owner[real] = value
        getattr(owner, "origins", {})[real] = origin
    else:
        owner[int(key)] = value


def delete(owner: Any, key: str) -> None:
    """Remove an item of a container."""
    if isinstance(owner, Lazy) and key.isdigit():
        del owner.args[int(key)]
    elif isinstance(owner, dict):
        del owner[next(name for name in owner if str(name) == key)]
    else:
        del owner[int(key)]
