"""Find all faults of a config before anything is built: names, signatures and types."""

import inspect
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from inspect import Parameter
from typing import Any, Literal, Union, get_args, get_origin

from stoker.config.lazy import UNKNOWN, Lazy, Section, children
from stoker.config.other_trainers import KEYS, use_instead
from stoker.config.resolve import has_references
from stoker.config.yaml_text import Named, plain
from stoker.core.errors import did_you_mean
from stoker.core.foreign_words import instead_of

ANYTHING = inspect.Parameter.empty


def parameters(target: Callable[..., Any]) -> dict[str, inspect.Parameter] | None:
    """Return the parameters of a callable by name, or None if they cannot be inspected."""
    try:
        try:
            return dict(inspect.signature(target, eval_str=True).parameters)
        except (NameError, TypeError, SyntaxError, AttributeError):
            found = inspect.signature(target).parameters
    except (ValueError, TypeError):
        return None
    names = getattr(getattr(target, "__init__", target), "__globals__", {})
    return {name: p.replace(annotation=_evaluated(p, names)) for name, p in found.items()}


def _evaluated(parameter: inspect.Parameter, names: dict[str, Any]) -> Any:
    """Return the type of a parameter; its text if a name in it cannot be found."""
    if not isinstance(parameter.annotation, str):
        return parameter.annotation
    try:
        return eval(parameter.annotation, names)
    except Exception:
        return parameter.annotation


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
    holds_texts = not args or not _has_items(origin) or fits("", args[0])
    # A text is a sequence, but of texts.
    return _one_fits(value, origin or kind) and (holds_texts or not isinstance(value, str))


def _has_items(origin: Any) -> bool:
    return isinstance(origin, type) and issubclass(origin, Iterable)


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
    if not args or not _has_items(kind):
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
    if kind is None or kind is type(None) or kind is dict:
        return "a mapping" if kind is dict else "None"
    if get_origin(kind) in (Union, types.UnionType):
        return " or ".join(described(one) for one in get_args(kind))
    if get_origin(kind) is Literal:
        return " or ".join(repr(one) for one in get_args(kind))
    return (
        kind.__name__
        if isinstance(kind, type) and not get_args(kind)
        else str(kind).replace("typing.", "")
    )


_SPELLINGS = {
    **dict.fromkeys(("yes", "on", "y", "1", "t"), "true"),
    **dict.fromkeys(("no", "off", "n", "0", "f"), "false"),
    **dict.fromkeys(("none", "nil", "nan", ""), "null"),
}
_PRECISIONS = {
    **dict.fromkeys(("16", "16-mixed", "float16", "half", "fp16-mixed", "16-true"), "fp16"),
    **dict.fromkeys(("bfloat16", "bf16-mixed", "bf16-true", "mixed", "amp"), "bf16"),
    **dict.fromkeys(("32", "float32", "float", "full", "32-true", "no", "none", "null"), "fp32"),
}


def near_value(value: Any, kind: Any) -> str:
    """Return the end of an error message: the right spelling of a value, or an empty string.

    >>> near_value("yes", bool)
    '; did you mean true?'
    """
    if isinstance(value, list | tuple | Mapping):
        return ""
    text = "null" if value is None else str(value).strip().lower()
    number = plain(text)
    if isinstance(number, float) and number.is_integer():
        number = int(number)
    for guess in (_SPELLINGS.get(text), _PRECISIONS.get(text), text, str(number)):
        if guess is not None and fits(plain(guess), kind) and repr(plain(guess)) != repr(value):
            return f"; did you mean {guess}?"
    names = [one for one in get_args(kind) if isinstance(one, str)]
    return did_you_mean(text, names) if get_origin(kind) is Literal else ""


def as_tuples(value: Any, kind: Any) -> Any:
    """Convert a list to a tuple if the call declares a tuple."""
    kinds = get_args(kind) if get_origin(kind) in (Union, types.UnionType) else (kind,)
    names = {get_origin(one) or one for one in kinds}
    if isinstance(value, list) and tuple in names and list not in names:
        return tuple(value)
    return value


SUPPLIED = {
    "optimizer": ("params",),
    "lr_scheduler": ("optimizer", "total_steps", "T_max"),
}
"""Arguments that the run supplies to the nodes below a key."""

_PLACEHOLDERS = {("optimizer", "fused"): ("auto",)}
"""By top-level key and argument, values that the run replaces, such as ``fused: auto``."""

LOADERS = ("train_loader", "val_loader", "predict_loader")
_PLAIN = (str, int, float, list, tuple, Section)
_NODES = ("model", "criterion", "step", *LOADERS)
_SEVERAL = ("optimizer", "lr_scheduler", "val_loader", "train_loader", "predict_loader")


def top_key(path: str) -> str:
    """Return the first key of a dotted path."""
    return path.partition(".")[0]


def is_placeholder(keys: Sequence[str], value: Any) -> bool:
    """Return whether the run replaces a value before the call."""
    return isinstance(value, str) and value in _PLACEHOLDERS.get((keys[0], keys[-1]), ())


def wrong_parts(tree: Section) -> list[str]:
    """Return faults for keys that should hold a call, or several calls by name, and do not."""
    faults = []
    for key in dict.fromkeys((*_NODES, *_SEVERAL)):
        value, place = tree.get(key), tree.origin(key)
        if isinstance(value, Lazy) or not isinstance(value, _PLAIN) or has_references(value):
            continue
        named = list(value.values()) if isinstance(value, dict) and key in _SEVERAL else [None]
        if not all(isinstance(one, Lazy) or one is UNKNOWN for one in named):
            faults.append(f"{place}: '{key}' is {value!r}, expected a call (_target_ or type)")
    hooks = tree.get("hooks")
    if hooks is not None and not isinstance(hooks, list) and not has_references(hooks):
        kind = type(hooks).__name__
        faults.append(f"{tree.origin('hooks')}: 'hooks' is a {kind}, expected a list: [{hooks!r}]")
    for number, hook in enumerate(hooks if isinstance(hooks, list) else []):
        if has_references(hook):
            continue
        if hook is None or (isinstance(hook, _PLAIN) and not isinstance(hook, Lazy)):
            place = tree.origin("hooks")
            faults.append(f"{place}: 'hooks.{number}' is {hook!r}, expected a call (type)")
    return faults


def named_in(value: Any) -> Iterator[Named]:
    """Yield the classes and functions that a node passes by name, without those of inner nodes."""
    for _, item in children(value):
        if isinstance(item, Named):
            yield item
        elif not isinstance(item, Lazy):
            yield from named_in(item)


def nodes(value: Any, path: str = "") -> Iterator[tuple[str, Lazy]]:
    """Yield every node once, with its path."""
    seen: set[int] = set()

    def walk(part: Any, at: str) -> Iterator[tuple[str, Lazy]]:
        if not isinstance(part, dict | list | tuple) or id(part) in seen:
            return
        seen.add(id(part))
        if isinstance(part, Lazy):
            yield at, part
        for key, item in children(part):
            yield from walk(item, f"{at}.{key}" if at else str(key))

    yield from walk(value, path)


def faults_of_node(path: str, node: Lazy, target: Any, supplied: Sequence[str] = ()) -> list[str]:
    """Return the faults in the arguments of one node."""
    taken = parameters(target)
    if taken is None:
        return []
    faults: list[str] = []
    positional = [p for p in taken.values() if p.kind <= Parameter.POSITIONAL_OR_KEYWORD]
    takes_any_args = any(p.kind == Parameter.VAR_POSITIONAL for p in taken.values())
    takes_any_key = any(p.kind == Parameter.VAR_KEYWORD for p in taken.values())
    if len(node.args) > len(positional) and not takes_any_args:
        faults.append(
            f"{node.where}: {node.target} takes {len(positional)} positional arguments, "
            f"'{path}' gives {len(node.args)}"
        )
    given: dict[str, tuple[Any, str]] = {}
    for parameter, value in zip(positional, node.args, strict=False):
        given[parameter.name] = (value, node.where)
    for key, value in node.items():
        if is_placeholder((top_key(path), key), value):
            continue
        place = node.origin(key)
        if key in given:
            faults.append(f"{place}: '{path}.{key}' is given twice, once by position")
        elif key not in taken or taken[key].kind in _BY_POSITION:
            if not takes_any_key:
                near = _instead(node, str(key), value, taken)
                faults.append(f"{place}: {node.target} has no argument '{key}'{near}")
            continue
        given[key] = (value, place)
    faults += _missing(path, node, taken, {*given, *supplied})
    faults += [
        f"{place}: '{path}.{key}' is {value!r}, expected {described(type_of(taken[key]))}"
        f"{near_value(value, type_of(taken[key]))}"
        for key, (value, place) in given.items()
        if not fits(value, type_of(taken[key]))
    ]
    return faults


_BY_POSITION = (Parameter.POSITIONAL_ONLY, Parameter.VAR_POSITIONAL)


def _instead(node: Lazy, key: str, value: Any, taken: Mapping[str, Parameter]) -> str:
    """Return the argument to use instead of an unknown one, as the end of a message."""
    call = str(node.target).rpartition(".")[2]
    ours = (instead_of(key, value, call, taken) or "").partition("=")
    if any(did_you_mean(key, [n]) for n, one in taken.items() if one.kind in _BY_POSITION):
        return "; use '_args_: […]'"
    if ours[0] in taken:
        value = ours[2].strip("'")
        return f"; use '{ours[0]}: {value}'" if value != "…" else f"; use '{ours[0]}'"
    return did_you_mean(key, taken)


def _missing(path: str, node: Lazy, taken: Mapping[str, Parameter], given: set[str]) -> list[str]:
    needed = [
        name
        for name, p in taken.items()
        if p.default is ANYTHING
        and p.kind not in (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)
        and name not in given
    ]
    if not needed:
        return []
    names = ", ".join(f"'{name}'" for name in needed)
    return [f"{node.where}: {node.target} needs {names}, which '{path}' does not set"]


def unknown_keys(tree: Section, used: set[str], nodes_only: bool) -> list[str]:
    """Return faults for unknown top-level keys that nothing refers to.

    In a Python file, plain values are variables of the author; an unused node is a fault.
    """
    faults = []
    for key, value in tree.items():
        if key in KEYS or key in used or str(key).startswith("_"):
            continue
        near = use_instead(str(key)) or did_you_mean(str(key), KEYS)
        if (
            nodes_only
            and not any(True for _ in nodes(value))
            and not (near and isinstance(value, dict | list))
        ):
            continue
        rest = near or f", and nothing refers to it (config keys: {', '.join(KEYS)})"
        faults.append(f"{tree.origin(key)}: '{key}' is not a config key{rest}")
    return faults
