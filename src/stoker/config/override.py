"""Overrides: ``optimizer.lr=3e-4``, ``~hooks.1``, ``+hooks=EarlyStopping``."""

import re
from dataclasses import fields, is_dataclass
from typing import Any, NamedTuple, get_type_hints

from stoker.config import paths
from stoker.config.check import (
    ANYTHING,
    described,
    fits,
    is_placeholder,
    near_value,
    parameters,
    type_of,
    typed,
)
from stoker.config.lazy import Lazy, Section, children, copied
from stoker.config.names import UnknownNameError
from stoker.config.other_trainers import KEYS
from stoker.config.registry import RegistryError, registry_at
from stoker.config.resolve import has_references
from stoker.config.run_section import RunConfig, fault_of_value, section_type
from stoker.config.trust import Override
from stoker.config.yaml_text import read
from stoker.core.errors import ConfigError, did_you_mean
from stoker.storage.locations import hide_credentials

_FORM = re.compile(r"(?P<sign>[+~]?)(?P<path>[\w.\-\[\]/]+)(?:=(?P<text>.*))?", re.DOTALL)


class UnknownKeyError(ConfigError):
    """An override of a key that the config does not have.

    Attributes:
        key: the key.
        text: the value.
        near: similar keys, as the end of a message.
    """

    def __init__(self, fault: str, key: str, text: str, near: str = "") -> None:
        super().__init__(fault + near)
        self.fault, self.key, self.text, self.near = fault, key, text, near


class Kind(NamedTuple):
    """The type expected at a path, whether the path is known, and similar names."""

    type: Any
    known: bool
    near: str = ""


def apply(tree: Section, override: str, callee: Any) -> None:
    """Apply one override to the tree.

    Args:
        tree: the config, changed in place.
        override: the text of the override.
        callee: returns the callable of a node.

    Raises:
        ConfigError: the path does not exist, or the value has the wrong type.
    """
    match, shown = _FORM.fullmatch(override), hide_credentials(override)
    if match is None or (match["text"] is None) != (match["sign"] == "~"):
        meant = _near_form(override)
        raise ConfigError(
            f"'{shown}' is not an override: expected key=value, +list=value or ~key{meant}"
        )
    keys = paths.split(match["path"])
    origin = Override(f"override '{shown}'")
    try:
        if match["sign"] == "~":
            owner = _owner(tree, keys)
            paths.part(owner, keys[-1], ".".join(keys[:-1]))
            paths.delete(owner, keys[-1])
            return
        value = _typed_by_user(value_of(match["text"]), origin)
        if match["sign"] == "+":
            _add(tree, keys, value, origin)
        else:
            _set(tree, keys, match["text"], value, origin, callee)
    except paths.NoSuchPlaceError as error:
        if match["sign"]:
            raise ConfigError(f"{origin}: {error}") from None
        fault = f"{origin}: '{match['path']}' does not exist"
        raise UnknownKeyError(fault, match["path"], match["text"], f": {error}") from None


def _near_form(override: str) -> str:
    """Return the override that was meant, as the end of a message."""
    word = override.lstrip("+-")
    if word != override and _FORM.fullmatch(word) and "=" in word:
        return f"; did you mean '{word}'?"
    key, colon, text = word.partition(":")
    if colon and _FORM.fullmatch(f"{key}={text}") and "." in key:
        return f"; did you mean '{key}={text.strip()}'?"
    return ""


def value_of(text: str) -> Any:
    """Return the value of a text: parsed as YAML, or the text itself if it is not YAML."""
    if text == "":
        return ""
    try:
        return read(text, "override")
    except ConfigError:
        if text[0] in "[{'\"":
            raise ConfigError(
                f"override: {text} cannot be parsed: is a bracket or quote open?"
            ) from None
        return text


def _typed_by_user(value: Any, origin: Override) -> Any:
    """Record the override as the origin of everything in a value."""
    if isinstance(value, Section):
        value.where = origin
        value.origins = dict.fromkeys(value, origin)
    for _, item in children(value):
        _typed_by_user(item, origin)
    return value


def _owner(tree: Section, keys: list[str]) -> Any:
    """Return the container of the last key, following references on the way."""
    value: Any = tree
    for index, key in enumerate(keys[:-1]):
        found = paths.key_in(value, key)
        if found is None and value is tree and key == "run":
            tree["run"] = Section(where="override")
            found = (tree["run"],)
        elif found is None and keys[0] == "run" and section_type(_run_type(keys[:index]), key):
            value[key] = Section(where="override")
            found = (value[key],)
        value = found[0] if found else paths.part(value, key, ".".join(keys[:index]))
        if has_references(value):
            value = paths.get(tree, value.strip("${}"))
        if isinstance(value, str) and registry_at(keys[: index + 1]) is not None:
            value = _opened(tree, keys[: index + 1], value)
    if not isinstance(value, dict | list):
        at = ".".join(keys[:-1])
        raise paths.NoSuchPlaceError(f"'{at}' is {value!r}, which has no '{keys[-1]}' in it")
    return value


def _opened(tree: Section, keys: list[str], name: str) -> Section:
    """Expand a short name, ``optimizer: Adam``, to a mapping that can take arguments."""
    owner = _owner(tree, keys)
    section = Section({"type": name}, where=getattr(owner, "origin", lambda _: "")(keys[-1]))
    paths.put(owner, keys[-1], section, section.where)
    return section


def _add(tree: Section, keys: list[str], value: Any, origin: str) -> None:
    owner = _owner(tree, keys) if len(keys) > 1 else tree
    found = paths.key_in(owner, keys[-1])
    at = ".".join(keys)
    if found is None and at == "hooks":
        tree["hooks"] = [value]
        tree.origins["hooks"] = origin
    elif found is None and isinstance(owner, Section):
        paths.put(owner, keys[-1], value, origin)
    elif found is not None and isinstance(found[0], list):
        found[0].append(value)
    else:
        raise ConfigError(f"{origin}: '{at}' already exists and is not a list: remove the +")


def _set(tree: Section, keys: list[str], text: str, value: Any, origin: str, callee: Any) -> None:
    owner = _owner(tree, keys) if len(keys) > 1 else tree
    if is_placeholder(keys, value):
        paths.put(owner, keys[-1], value, origin)
        return
    found = paths.key_in(owner, keys[-1])
    kind = _kind(owner, keys, found, callee)
    if not kind.known:
        at = f"'{'.'.join(keys[:-1])}'" if len(keys) > 1 else "a config"
        fault = f"{origin}: {at} has no '{keys[-1]}'"
        raise UnknownKeyError(fault, ".".join(keys), text, kind.near)
    value = typed(text, value, kind.type)
    if not fits(value, kind.type):
        near = near_value(value, kind.type)
        raise ConfigError(f"{origin}: expected {described(kind.type)}, got {text}{near}")
    if keys[0] == "run" and len(keys) > 1 and kind.type is not ANYTHING:
        wrong = fault_of_value(_run_type(keys[:-1]), keys[-1], value, ".".join(keys))
        if wrong is not None:
            raise ConfigError(f"{origin}: {wrong}")
    paths.put(owner, keys[-1], copied(value), origin)


def _kind(owner: Any, keys: list[str], found: tuple[Any] | None, callee: Any) -> Kind:
    """Return what a path accepts: by signature, by field type, or by its current value."""
    key = keys[-1]
    if len(keys) == 1:
        return Kind(ANYTHING, key in KEYS or found is not None, did_you_mean(key, KEYS))
    if keys[0] == "run":
        return _field_kind(keys)
    registry = registry_at(keys[:-1])
    target: Any = None
    try:
        if isinstance(owner, Lazy):
            target = callee(owner)
        elif isinstance(owner, Section) and registry and isinstance(owner.get("type"), str):
            target = registry.get(owner["type"])
    except (UnknownNameError, RegistryError) as error:
        raise ConfigError(f"{owner.where}: {error}") from None
    if target is not None and not (key == "type" and not isinstance(owner, Lazy)):
        return _argument_kind(target, key, found)
    if found is None:
        near = did_you_mean(key, [str(name) for name in owner]) if isinstance(owner, dict) else ""
        return Kind(
            ANYTHING, False, f"{near} (+ adds a new one)" if isinstance(owner, dict) else ""
        )
    old = found[0]
    number = isinstance(old, int | float)
    return Kind(
        (bool if isinstance(old, bool) else float | int | None) if number else ANYTHING, True
    )


def _argument_kind(target: Any, key: str, found: tuple[Any] | None) -> Kind:
    taken = parameters(target)
    if taken is None or key.isdigit():
        return Kind(ANYTHING, found is not None or taken is None)
    if key in taken:
        return Kind(type_of(taken[key]), True)
    takes_any = any(p.kind == p.VAR_KEYWORD for p in taken.values())
    return Kind(ANYTHING, takes_any or found is not None, did_you_mean(key, taken))


def _run_type(keys: list[str]) -> type:
    """Return the dataclass of ``run`` or of a section inside it."""
    kind: type = RunConfig
    for key in keys[1:]:
        kind = section_type(kind, key) or kind
    return kind


def _field_kind(keys: list[str]) -> Kind:
    kind = _run_type(keys[:-1])
    hints = get_type_hints(kind)
    if keys[-1] not in hints:
        return Kind(ANYTHING, False, did_you_mean(keys[-1], [one.name for one in fields(kind)]))
    hint = hints[keys[-1]]
    return Kind(dict if is_dataclass(hint) else hint, True)
