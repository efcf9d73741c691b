"""The configuration of a run as flat keys, and what differs between runs."""

import math
from typing import Any

import yaml

from stoker.board.safe_files import Folder

_LARGEST_FILE = 1 << 20
_MOST_KEYS = 3000
_LONGEST_TEXT = 2000
_ABSENT = object()


def config_of(folder: Folder) -> tuple[dict[str, Any], str]:
    """The flat keys of ``config.yaml``, and what is wrong with it, which may be nothing."""
    text = folder.head("config.yaml", _LARGEST_FILE + 1)
    if len(text) > _LARGEST_FILE:
        return {}, "config.yaml is too large to be shown"
    try:
        tree = yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except (yaml.YAMLError, ValueError, RecursionError, TypeError, AttributeError) as error:
        return {}, f"config.yaml cannot be read: {str(error)[:300]}"
    if tree is not None and not isinstance(tree, dict):
        return {}, "config.yaml holds no configuration"
    return flat(tree or {}), ""


def flat(tree: Any) -> dict[str, Any]:
    """The leaves of a tree by dotted keys, as plain values; as many as a page can show."""
    found: dict[str, Any] = {}
    waiting: list[tuple[str, Any, int]] = [("", tree, 0)]
    while waiting and len(found) < _MOST_KEYS:
        path, value, depth = waiting.pop()
        inner = None
        if isinstance(value, dict):
            inner = list(value.items())
        elif isinstance(value, list):
            inner = list(enumerate(value))
        if inner and depth < 30 and len(waiting) < _MOST_KEYS:
            below = [(f"{path}.{_text(key)}" if path else _text(key), v) for key, v in inner]
            waiting += [(at, one, depth + 1) for at, one in reversed(below[:_MOST_KEYS])]
        elif path:
            found[path] = _plain(value)
    return found


def differences(configs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The keys whose values differ, each with its value in every config, None where it has none."""
    rows = []
    for key in sorted({key for config in configs for key in config}):
        values = [config.get(key, _ABSENT) for config in configs]
        if any(repr(value) != repr(values[0]) for value in values[1:]):
            shown = [None if value is _ABSENT else said(value) for value in values]
            rows.append({"key": key, "values": shown})
    return rows


def said(value: Any) -> str:
    """A value as it is written in a config."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


def _plain(value: Any) -> Any:
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, int):
        return value if abs(value) < 2**53 else _text(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, dict | list):
        return "{}" if isinstance(value, dict) else "[]" if not value else "…"
    return _text(value)


def _text(value: Any) -> str:
    try:
        text = str(value)
    except (ValueError, RecursionError):  # an integer of thousands of digits, a tree in itself
        return "…"
    return text.encode("utf-8", "replace").decode()[:_LONGEST_TEXT]
