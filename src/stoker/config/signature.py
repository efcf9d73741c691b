"""Signatures of calls: parameters, their types, and whether a value fits."""

import inspect
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, Union, get_args, get_origin

from stoker.config.lazy import Lazy
from stoker.config.resolve import has_references
from stoker.config.yaml_text import Named

ANYTHING = inspect.Parameter.empty


def parameters(target: Callable[..., Any]) -> dict[str, inspect.Parameter] | None:
    """Return the parameters of a callable by name, or None if they cannot be inspected."""
    try:
        try:
            signature = inspect.signature(target, eval_str=True)
        except (NameError, TypeError, SyntaxError, AttributeError):
            signature = inspect.signature(target)
    except (ValueError, TypeError):
        return None
    return dict(signature.parameters)


def positional_names(taken: dict[str, inspect.Parameter]) -> list[str]:
    """Return the names of the parameters that accept positional arguments, in order."""
    return [p.name for p in taken.values() if p.kind <= inspect.Parameter.POSITIONAL_OR_KEYWORD]


def type_of(parameter: inspect.Parameter) -> Any:
    """Return the declared type of a parameter, or that of its default, or ANYTHING."""
    if parameter.annotation is not ANYTHING:
        return parameter.annotation
    default = parameter.default
    if isinstance(default, bool):
        return bool
    if isinstance(default, int | float):
        return float | int | None
    return str | None if isinstance(default, str) else ANYTHING


def fits(value: Any, kind: Any) -> bool:
    """Return whether a value has a declared type; True if that cannot be decided."""
    if isinstance(value, Lazy | Named) or has_references(value):
        return True
    if kind in (ANYTHING, Any, object) or isinstance(kind, str):
        return True
    origin, args = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        return any(fits(value, one) for one in args)
    if origin is Literal:
        return value in args
    if isinstance(value, list | tuple):
        return _items_fit(value, origin or kind, args)
    return _one_fits(value, origin or kind)


def _one_fits(value: Any, kind: Any) -> bool:
    if value is None or kind is None or kind is type(None):
        return value is None and kind in (None, type(None))
    if isinstance(value, bool) or kind is bool:
        return isinstance(value, bool) and kind is bool
    if kind in (float, complex):
        return isinstance(value, int | float)
    if kind in (int, str, list, tuple, set, frozenset):
        return isinstance(value, kind)
    try:
        return isinstance(value, kind) or not _is_plain_type(kind)
    except TypeError:  # isinstance does not support the type
        return True


def _is_plain_type(kind: Any) -> bool:
    """Return whether values of other plain types are certainly wrong."""
    return kind in (dict, bytes, Mapping) or (
        isinstance(kind, type) and kind.__module__.split(".")[0] in ("torch", "stoker")
    )


def _items_fit(values: Sequence[Any], kind: Any, args: tuple[Any, ...]) -> bool:
    if kind in (bool, int, float, str, dict, None, type(None)):
        return False
    if not args or not isinstance(kind, type) or not issubclass(kind, Iterable):
        return not isinstance(kind, type) or not _is_plain_type(kind)
    if issubclass(kind, tuple) and Ellipsis not in args:
        return len(values) == len(args) and all(map(fits, values, args))
    return all(fits(value, args[0]) for value in values)


def typed(text: str, value: Any, kind: Any) -> Any:
    """Convert a value parsed from ``text`` to the declared type where possible."""
    if isinstance(value, str) or fits(value, kind):
        return float(value) if kind is float and type(value) is int else value
    if fits(text, kind):
        return text  # a string that looks like a number
    return value


def described(kind: Any) -> str:
    """Format a type for messages."""
    if kind is None or kind is type(None):
        return "None"
    if get_origin(kind) in (Union, types.UnionType):
        return " or ".join(described(one) for one in get_args(kind))
    if get_origin(kind) is Literal:
        return " or ".join(repr(one) for one in get_args(kind))
    return (
        kind.__name__
        if isinstance(kind, type) and not get_args(kind)
        else str(kind).replace("typing.", "")
    )


def as_tuples(value: Any, kind: Any) -> Any:
    """Convert a list to a tuple if the call declares a tuple."""
    kinds = get_args(kind) if get_origin(kind) in (Union, types.UnionType) else (kind,)
    names = {get_origin(one) or one for one in kinds}
    if isinstance(value, list) and tuple in names and list not in names:
        return tuple(value)
    return value
