"""Configurations as flat keys: flatten a tree, compare several, format a value."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from stoker.config.lazy import Lazy, children

ABSENT = object()
"""The value of a key in a config that does not have it."""

_DEEPEST = 30
_LONGEST_TEXT = 2000
_LONGEST_LIST = 200


class Difference(NamedTuple):
    """A key, and its value in every config; `ABSENT` where a config does not have it."""

    key: str
    values: list[Any]


def flatten(tree: Any, limit: int | None = None) -> dict[str, Any]:
    """Return the leaves of a tree by dotted keys; a list of plain values is one leaf.

    Args:
        tree: mappings, lists and `Lazy` nodes.
        limit: the largest number of leaves. Set it for a tree from a file that you do not trust,
            which may be nested without end; what is beyond the limit is left out.
    """
    found: dict[str, Any] = {}
    waiting: list[tuple[str, Any, int]] = [("", tree, 0)]
    while waiting and (limit is None or len(found) < limit):
        path, value, depth = waiting.pop()
        inner = _children(value)
        if inner and (limit is None or (depth < _DEEPEST and len(waiting) < limit)):
            below = [(f"{path}.{_text(key)}" if path else _text(key), v) for key, v in inner]
            waiting += [(key, one, depth + 1) for key, one in reversed(below[:limit])]
        elif path:
            found[path] = value
    return found


def _children(value: Any) -> list[tuple[Any, Any]]:
    if isinstance(value, list | tuple):
        nested = any(isinstance(one, dict | list | tuple) for one in value[:_LONGEST_LIST])
        return list(enumerate(value)) if nested else []
    target = [("_target_", value.target)] if isinstance(value, Lazy) else []
    return target + list(children(value))


def differences(configs: Sequence[dict[str, Any]]) -> list[Difference]:
    """Return the keys of flat configs whose values differ, sorted."""
    found = []
    for key in sorted({key for config in configs for key in config}):
        values = [config.get(key, ABSENT) for config in configs]
        if not all(_is_same(value, values[0]) for value in values[1:]):
            found.append(Difference(key, values))
    return found


def _is_same(one: Any, other: Any) -> bool:
    return bool(one == other) or repr(one) == repr(other)


def format_value(value: Any) -> str:
    """Return a value as a config spells it; an empty string for `ABSENT`."""
    if value is ABSENT:
        return ""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    return str(value)


def plain_value(value: Any) -> str | int | float | bool | None:
    """Return a leaf as JSON can hold it, of bounded length, whatever it is."""
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, int):
        return value if abs(value) < 2**53 else _text(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, list):
        parts = [format_value(plain_value(one)) for one in value[:_LONGEST_LIST]]
        more = ["…"] if len(value) > _LONGEST_LIST else []
        return f"[{', '.join(parts + more)}]"[:_LONGEST_TEXT]
    if isinstance(value, dict):
        return "…" if value else "{}"
    return _text(value)


def _text(value: Any) -> str:
    try:
        text = str(value)
    except (ValueError, RecursionError):  # an integer of thousands of digits, a tree in itself
        return "…"
    return text.encode("utf-8", "replace").decode()[:_LONGEST_TEXT]
