"""Configs as YAML: read with the line of every value, and written so that they read back equal.

Four keys are special: ``_target_`` with ``_args_`` is a node, ``_object_`` is a class or function
passed as a value, and ``_tuple_`` is a tuple. ``5e-05`` is a number; ``yes`` and ``on`` are text.
"""

import math
import re
import sys
from functools import cache
from typing import Any, NoReturn

import yaml

from stoker.config.lazy import Lazy, Section, children, rebuilt
from stoker.config.names import is_named, name_of
from stoker.core.errors import ConfigError

_FLOAT = re.compile(
    r"[-+]?(?:[0-9]+\.[0-9]*|\.[0-9]+|[0-9]+)(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)"
)
_INT = re.compile(r"[-+]?[0-9]+|0x[0-9a-fA-F]+")
_REFERABLE = re.compile(r"[A-Za-z_][\w-]*(?:\.[\w-]+)*")
_TAG = "tag:yaml.org,2002:"
_DEEPEST = 100
_MOST_VALUES = 1_000_000
_MOST_DIGITS = 400


_RESOLVER = yaml.resolver.Resolver()
"""PyYAML's type of an unquoted scalar, which can differ from ours."""


class Named:
    """A class or function that a config passes as a value, by its dotted name."""

    def __init__(self, name: str, where: str = "", thing: Any = None) -> None:
        self.name, self.where, self.thing = name, where, thing

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Named) and other.name == self.name

    def __hash__(self) -> int:
        return hash(self.name)

    def __repr__(self) -> str:
        return self.name


def read(text: str, name: str) -> Any:
    """Parse a YAML text. ``name`` is the file name for places and messages."""
    try:
        node = _Loader(text, name).get_single_node()
    except yaml.MarkedYAMLError as error:
        line = f":{error.problem_mark.line + 1}" if error.problem_mark else ""
        raise ConfigError(f"{name}{line}: invalid YAML: {error.problem}") from None
    except (yaml.YAMLError, ValueError, OverflowError) as error:
        if isinstance(error, ConfigError):
            raise
        reason = " ".join(str(error).split())
        raise ConfigError(f"{name}: invalid YAML: {reason}") from None
    value = _Reader(name).value(node) if node is not None else None
    check_size(value, name)
    return value


class _Loader(yaml.SafeLoader):
    """Composes nodes down to a bounded depth."""

    def __init__(self, text: str, name: str) -> None:
        super().__init__(text)
        self._place, self._depth = name, 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        self._depth += 1
        if self._depth > _DEEPEST:
            raise ConfigError(f"{self._place}: nested more than {_DEEPEST} levels deep")
        node = super().compose_node(parent, index)
        self._depth -= 1
        return node


def check_size(tree: Any, name: str) -> None:
    """Reject a tree that is too deep or, with what is used several times, too large.

    A few anchors or references can describe more values than fit into memory.
    """
    seen: dict[int, tuple[int, int]] = {}

    def measure(value: Any, depth: int) -> tuple[int, int]:
        """Return the number of values and of levels."""
        if not isinstance(value, dict | list | tuple):
            return 1, 0
        if id(value) not in seen and depth <= _DEEPEST:
            inner = [measure(item, depth + 1) for _, item in children(value)]
            seen[id(value)] = (
                1 + sum(size for size, _ in inner),
                1 + max((levels for _, levels in inner), default=0),
            )
        size, levels = seen.get(id(value), (0, _DEEPEST))
        if depth + levels > _DEEPEST:
            raise ConfigError(f"{name}: nested more than {_DEEPEST} levels deep")
        return size, levels

    if measure(tree, 0)[0] > _MOST_VALUES:
        raise ConfigError(f"{name}: more than {_MOST_VALUES} values, with repeated ones counted")


class _Reader:
    """Converts YAML nodes to values. An alias ``*x`` is the same object as its anchor ``&x``."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._seen: dict[int, Any] = {}
        self._open: set[int] = set()
        self._merged = 0

    def value(self, node: yaml.Node) -> Any:
        if isinstance(node, yaml.ScalarNode):
            return self._scalar(node)
        if id(node) in self._open:
            raise ConfigError(f"{self._place(node)}: this contains itself")
        if id(node) not in self._seen:
            self._open.add(id(node))
            self._seen[id(node)] = self._container(node)
            self._open.discard(id(node))
        return self._seen[id(node)]

    def _place(self, node: yaml.Node) -> str:
        return f"{self._name}:{node.start_mark.line + 1}"

    def _scalar(self, node: yaml.ScalarNode) -> Any:
        unquoted = node.style is None
        if len(node.value) > _MOST_DIGITS and _INT.fullmatch(node.value):
            raise ConfigError(f"{self._place(node)}: a number of more than {_MOST_DIGITS} digits")
        seen = _RESOLVER.resolve(yaml.ScalarNode, node.value, (unquoted, not unquoted))  # type: ignore[no-untyped-call]
        if unquoted and node.tag == seen:
            return plain(node.value)
        kinds = {"str": str, "int": int, "float": float}
        kind = kinds.get(node.tag.removeprefix(_TAG))
        if kind is None:
            raise ConfigError(
                f"{self._place(node)}: the tag '{node.tag}' is not supported: write a node with "
                "_target_"
            )
        try:
            return kind(node.value)
        except ValueError:
            raise ConfigError(
                f"{self._place(node)}: {node.value!r} is not of type {kind.__name__}"
            ) from None

    def _container(self, node: yaml.Node) -> Any:
        if node.tag not in ("tag:yaml.org,2002:map", "tag:yaml.org,2002:seq"):
            raise ConfigError(f"{self._place(node)}: the tag '{node.tag}' is not supported")
        if isinstance(node, yaml.SequenceNode):
            return [self.value(item) for item in node.value]
        assert isinstance(node, yaml.MappingNode)
        section = Section(where=self._place(node))
        for key, (key_node, value_node) in self._pairs(node).items():
            section[key] = self.value(value_node)
            section.origins[key] = self._place(key_node)
        return self._special(section)

    def _pairs(self, node: yaml.MappingNode, merging: int = 0) -> dict[Any, tuple[Any, Any]]:
        """Return the pairs of a mapping by key, on top of those that it merges with ``<<``."""
        merged: dict[Any, tuple[Any, Any]] = {}
        own: dict[Any, tuple[Any, Any]] = {}
        for key_node, value_node in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                raise ConfigError(f"{self._place(key_node)}: a key must be a scalar")
            if key_node.tag == f"{_TAG}merge":
                self._merge(merged, value_node, merging)
                continue
            key = self._scalar(key_node)
            if key in own:
                raise ConfigError(f"{self._place(key_node)}: '{key}' is defined twice")
            own[key] = key_node, value_node
        return merged | own

    def _merge(self, merged: dict[Any, tuple[Any, Any]], node: yaml.Node, merging: int) -> None:
        below = node.value if isinstance(node, yaml.SequenceNode) else [node]
        for one in reversed(below):
            if not isinstance(one, yaml.MappingNode) or merging > _DEEPEST:
                raise ConfigError(f"{self._place(node)}: << must be a mapping or a list of them")
            merged |= self._pairs(one, merging + 1)
            self._merged += len(merged)
            if self._merged > _MOST_VALUES:
                raise ConfigError(f"{self._place(node)}: << merges more than {_MOST_VALUES} values")

    def _special(self, section: Section) -> Any:
        """Return the node, name or tuple that a mapping with special keys describes."""
        if "_object_" in section or "_tuple_" in section:
            key = "_object_" if "_object_" in section else "_tuple_"
            kind = str if key == "_object_" else list
            if len(section) > 1 or not isinstance(section[key], kind):
                word = "a dotted name" if kind is str else "a list"
                raise ConfigError(f"{section.where}: {key} must be the only key and must be {word}")
            found = section[key]
            return Named(found, section.where) if kind is str else tuple(found)
        if "_target_" not in section:
            if "_args_" in section and "type" not in section:
                raise ConfigError(f"{section.where}: _args_ needs a _target_")
            return section
        target, args = section["_target_"], section.get("_args_", [])
        if not isinstance(target, str):
            raise ConfigError(f"{section.where}: _target_ must be a dotted name, got {target!r}")
        if not isinstance(args, list):
            raise ConfigError(f"{section.where}: _args_ must be a list, got {args!r}")
        kwargs = {k: v for k, v in section.items() if k not in ("_target_", "_args_")}
        lazy = Lazy(target, args, kwargs, section.where)
        lazy.origins = section.origins
        return lazy


def plain(text: str) -> Any:
    """Convert an unquoted scalar: null, true, false, a number, or the text itself."""
    if text in ("", "~", "null", "Null", "NULL"):
        return None
    if text in ("true", "True", "TRUE", "false", "False", "FALSE"):
        return text.lower() == "true"
    if _INT.fullmatch(text):
        return int(text, 0) if "x" in text else int(text)
    if _FLOAT.fullmatch(text):
        return (
            float(text.replace(".inf", "inf").replace(".nan", "nan"))
            if "." in text
            else float(text)
        )
    return text


def write(tree: Any, *, in_one_line: bool = False) -> str:
    """Return a tree as YAML; a node used in several places is written once."""
    text: str = yaml.dump(
        _Plain().container(tree, ""),
        Dumper=_dumper(),
        sort_keys=False,
        allow_unicode=True,
        width=sys.maxsize if in_one_line else 100,
        default_flow_style=in_one_line,
    )
    return text


class _Plain:
    """Converts a tree to values that YAML can write."""

    def __init__(self) -> None:
        self._places: dict[int, str] = {}
        self._made: dict[int, Any] = {}

    def value(self, value: Any, path: str) -> Any:
        """Convert a value; a repeated one becomes a reference, or an alias if it has no path."""
        if not isinstance(value, dict | list):
            return (
                self.container(value, path) if isinstance(value, tuple) else self._leaf(value, path)
            )
        if id(value) in self._places:
            return "${" + self._places[id(value)] + "}"
        if _REFERABLE.fullmatch(path):
            self._places[id(value)] = path
        if id(value) not in self._made:
            self._made[id(value)] = self.container(value, path)
        return self._made[id(value)]

    def container(self, value: Any, path: str) -> Any:
        at = {str(key): f"{path}.{key}" if path else str(key) for key, _ in children(value)}
        if isinstance(value, dict):
            rest = {key: self.value(item, at[str(key)]) for key, item in value.items()}
            return self._node(value, rest, at) if isinstance(value, Lazy) else rest
        if isinstance(value, list | tuple):
            items = [self.value(item, at[str(index)]) for index, item in enumerate(value)]
            return items if isinstance(value, list) else {"_tuple_": items}
        return self._leaf(value, path)

    def _node(self, node: Lazy, rest: dict[str, Any], at: dict[str, str]) -> Any:
        _check_has_name(node.target, node.where)
        args = [self.value(item, at[str(index)]) for index, item in enumerate(node.args)]
        return {"_target_": node.target, **({"_args_": args} if args else {}), **rest}

    def _leaf(self, value: Any, path: str) -> Any:
        if isinstance(value, Named):
            _check_has_name(value.name, value.where)
            return {"_object_": value.name}
        if value is not None and not isinstance(value, str | int | float):
            _reject(value, path)
        return value


def settled(value: Any, path: str = "", *, strict: bool = True) -> Any:
    """Return a copy of a value in the form that configs use.

    A value that YAML cannot represent raises `ConfigError`, or is kept unless ``strict``. A node
    used in two places stays one object.
    """
    seen: dict[int, Any] = {}

    def settle(part: Any, at: str) -> Any:
        if isinstance(part, dict | list | tuple):
            if id(part) not in seen:
                _check_keys(part, at)
                below = iter([f"{at}.{key}" if at else str(key) for key, _ in children(part)])
                seen[id(part)] = rebuilt(part, lambda item: settle(item, next(below)))
            return seen[id(part)]
        if part is None or type(part) in (bool, int, float, str) or isinstance(part, Named):
            return part
        if is_named(part):
            return Named(name_of(part), thing=part)
        if strict:
            _reject(part, at)
        return part

    return settle(value, path)


def _check_keys(value: Any, path: str) -> None:
    for key in value if isinstance(value, dict) else ():
        if not isinstance(key, str | int | float | bool):
            raise ConfigError(
                f"{path or 'the config'} has the key {key!r}, expected a string or number"
            )


def _reject(value: Any, path: str) -> NoReturn:
    raise ConfigError(
        f"{path} is a {type(value).__name__}, which a config cannot hold: expected plain values "
        f"or L({type(value).__name__})(…)"
    )


def _check_has_name(name: str, where: str) -> None:
    if "<" in name or name.startswith("__main__."):
        raise ConfigError(
            f"{where or 'config'}: {name} has no name that another process could import: define it "
            "at the top of a module"
        )


@cache
def _dumper() -> type[yaml.SafeDumper]:
    """Return a dumper that quotes every text that a YAML parser could misread."""

    class Dumper(yaml.SafeDumper):
        """Uses an alias for a mapping or list used in several places."""

        def ignore_aliases(self, data: Any) -> bool:
            return not isinstance(data, dict | list) or not data

    number = re.compile(rf"^(?:{_FLOAT.pattern}|{_INT.pattern})$")
    Dumper.add_implicit_resolver("tag:yaml.org,2002:float", number, list("-+0123456789."))

    def float_text(dumper: yaml.SafeDumper, value: float) -> yaml.Node:
        text = {float("inf"): ".inf", -float("inf"): "-.inf"}.get(value, repr(value))
        return dumper.represent_scalar(
            "tag:yaml.org,2002:float", ".nan" if math.isnan(value) else text
        )

    def text(dumper: yaml.SafeDumper, value: str) -> yaml.Node:
        odd = any(sign in value for sign in "\x85\u2028\u2029")  # line ends to PyYAML
        return dumper.represent_scalar("tag:yaml.org,2002:str", value, style='"' if odd else None)

    Dumper.add_representer(float, float_text)
    Dumper.add_representer(str, text)
    return Dumper
