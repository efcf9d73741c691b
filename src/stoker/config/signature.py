"""What a call takes: parameters, their types, and whether a value fits."""

import inspect
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, Union, get_args, get_origin

from stoker.config.lazy import Lazy
from stoker.config.resolve import has_references
from stoker.config.yaml_text import Named

ANYTHING = inspect.Parameter.empty


def parameters(target: Callable[..., Any]) -> dict[str, inspect.Parameter] | None:
    """The parameters of a call by name, None where Python cannot tell."""
    try:
        try:
            signature = inspect.signature(target, eval_str=True)
        except (NameError, TypeError, SyntaxError, AttributeError):
            signature = inspect.signature(target)
    except (ValueError, TypeError):
        return None
    return dict(signature.parameters)


def positional_names(taken: dict[str, inspect.Parameter]) -> list[str]:
    """The parameters that positional arguments go to, in order."""
    return [p.name for p in taken.values() if p.kind <= inspect.Parameter.POSITIONAL_OR_KEYWORD]


def type_of(parameter: inspect.Parameter) -> Any:
    """The type that a parameter declares, or that its default suggests; ANYTHING if neither."""
    if parameter.annotation is not ANYTHING:
        return parameter.annotation
    default = parameter.default
    if isinstance(default, bool):
        return bool
    if isinstance(default, int | float):
        return float | int | None
    return str | None if isinstance(default, str) else ANYTHING


def fits(value: Any, kind: Any) -> bool:
    """Whether a plain value is of a declared type. What cannot be judged fits."""
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
    except TypeError:  # a type that cannot be asked
        return True


def _is_plain_type(kind: Any) -> bool:
    """Whether only a plain value can be meant, so that another one is a mistake."""
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
    """A value that was typed in as ``text``, as the declared type would have it."""
    if isinstance(value, str) or fits(value, kind):
        return float(value) if kind is float and type(value) is int else value
    if fits(text, kind):
        return text  # a name that looks like a number
    return value


def described(kind: Any) -> str:
    """A type as people write it."""
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
    """A list where the call declares a tuple, as that tuple."""
    kinds = get_args(kind) if get_origin(kind) in (Union, types.UnionType) else (kind,)
    names = {get_origin(one) or one for one in kinds}
    if isinstance(value, list) and tuple in names and list not in names:
        return tuple(value)
    return value
