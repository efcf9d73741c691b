"""Answers to wrong calls: an unknown keyword, a word of another trainer, a value of a wrong type.

    >>> trainer.fit(loader, max_epochs=3)
    TypeError: fit() has no argument 'max_epochs'; use epochs=3

`explain_calls` does this for the public names of a package. It replaces constructors and functions
by ones that check their arguments first; signatures, docstrings and pickles stay as they are.
What runs once per step is left alone.
"""

import inspect
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import is_dataclass
from functools import cached_property, wraps
from pathlib import Path
from types import FunctionType, NoneType, UnionType
from typing import Any, Literal, NoReturn, Union, get_args, get_origin

from stoker.core.errors import did_you_mean, is_sentence
from stoker.core.foreign_names import METHODS
from stoker.core.foreign_words import arguments_of, instead_of, missing_name, our_value

_PER_STEP = frozenset(
    ["Output", "StepContext", "Row", "Cursor", "RunProgress", "Run", "get_event_storage"]
)
"""Names that the loop itself uses at every step."""

_CALLED_BY_THE_LOOP = frozenset(
    (
        *("Hook", "Step", "Schedule", "PlainSchedule", "PipelineSchedule", "Metric", "Accuracy"),
        *("Mean", "Writer", "EventStorage", "BatchFeeder", "Module"),
    )
)
"""Classes whose methods the loop calls; only their constructors are replaced."""

_OF_EVERY_STEP = frozenset(
    (
        *("backward", "zero_grad", "step", "update", "skip_update", "unscale", "adjust_lr"),
        *("place", "no_sync", "train", "eval", "mode"),
    )
)
"""Methods of `Engine` that run once per step."""

_NUMBERS = {int: "__index__", float: "__float__"}
_PLAIN_TYPES = {
    int: "an integer",
    float: "a number",
    str: "a string",
    bool: "True or False",
    Path: "a path",
}
_CONTAINERS: dict[Any, tuple[type, str]] = {
    **dict.fromkeys((Mapping, dict), (Mapping, "values by name")),
    **dict.fromkeys((Sequence, list), (Iterable, "a list")),
}
"""Annotations of containers: what a value has to be, and how a message describes it."""


_CALLS: dict[str, list["_Call"]] = {}
"""The public calls explained so far, by their names in messages."""


def explain_calls(namespace: dict[str, Any], names: Iterable[str]) -> None:
    """Replace the functions, constructors and methods of these names by ones that explain.

    A name that the module does not have is answered, too.
    """
    known = list(names)
    for name in known:
        namespace[name] = explained(namespace[name])

    def missing(name: str) -> NoReturn:
        raise missing_name(namespace["__name__"], name, known)

    namespace["__getattr__"] = missing


def explained(thing: Any) -> Any:
    """Return a public class or function that checks its arguments; other values as they are."""
    name = getattr(thing, "__name__", "")
    if name in _PER_STEP or not getattr(thing, "__module__", "").startswith("stoker."):
        return thing
    if isinstance(thing, FunctionType):
        home, replaced = sys.modules[thing.__module__], _checked(thing, name)
        setattr(home, name, replaced)  # pickle finds it there
        return replaced
    if isinstance(thing, type) and not issubclass(thing, BaseException):
        _explain_class(thing)
    return thing


def _explain_class(cls: Any) -> None:
    if getattr(cls, "_is_protocol", False):
        return
    for name, value in list(vars(cls).items()):
        bound = value.__func__ if isinstance(value, classmethod | staticmethod) else value
        if not isinstance(bound, FunctionType) or not _is_called_by_users(cls, name):
            continue
        if name == "__init__":
            replaced: Any = _checked(bound, cls.__name__, of_value=is_dataclass(cls))
        else:
            replaced = _checked(bound, name)
        setattr(cls, name, replaced if bound is value else type(value)(replaced))
    if cls.__init__ is object.__init__ and cls.__new__ is object.__new__ and _is_concrete(cls):
        cls.__init__ = _checked(_without_arguments, cls.__name__)  # type: ignore[arg-type]
    if cls.__name__ in METHODS:
        _explain_methods(cls, METHODS[cls.__name__])


def _is_concrete(cls: type) -> bool:
    """Return whether a class is made to be used, rather than to be one base of several."""
    return cls.__name__ not in _CALLED_BY_THE_LOOP and not inspect.isabstract(cls)


def _without_arguments(self: object) -> None:
    pass


def _explain_methods(cls: Any, instead: Mapping[str, str]) -> None:
    """Answer methods of other trainers, which the class does not have, with what works."""

    def missing(self: Any, name: str) -> Any:
        if hasattr(type(self), name):  # a property that failed: show its own error
            return object.__getattribute__(self, name)
        near = did_you_mean(name, [one for one in dir(self) if not one.startswith("_")])
        hint = f"; use {instead[name]}" if name in instead else near
        text = f"{type(self).__name__!r} object has no attribute {name!r}{hint}"
        raise AttributeError(text, name=name, obj=self)

    cls.__getattr__ = missing


def _is_called_by_users(cls: type, method: str) -> bool:
    if method == "__init__":
        return True
    by_loop = _CALLED_BY_THE_LOOP & {base.__name__ for base in cls.__mro__}
    return not (method.startswith("_") or by_loop or method in _OF_EVERY_STEP)


def _checked(function: FunctionType, name: str, *, of_value: bool = False) -> FunctionType:
    """Return the function with a check of its arguments before it runs.

    A dataclass may know more about a wrong value, so its own error comes first: making one has no
    effect on anything else.
    """
    if hasattr(function, "__wrapped__"):  # explained already, or a context manager
        return function
    call = _Call(function, name)
    _CALLS.setdefault(name, []).append(call)

    @wraps(function)
    def checked(*args: Any, **kwargs: Any) -> Any:
        wrong = call.wrong_type(call.bind(args, kwargs))
        if wrong is None:
            return function(*args, **kwargs)
        if of_value:
            _raise_own(function, args, kwargs)
        raise TypeError(wrong)

    return checked  # type: ignore[return-value]


def _raise_own(constructor: Callable[..., Any], args: Any, kwargs: Any) -> None:
    """Raise the constructor's own sentence about its arguments, if it has one."""
    try:
        constructor(*args, **kwargs)
    except Exception as error:
        if is_sentence(error):
            raise


class _Call:
    """The signature of a function, under the name that users call it by."""

    def __init__(self, function: Callable[..., Any], name: str) -> None:
        self._function, self._name = function, name

    @cached_property
    def _signature(self) -> inspect.Signature:
        return inspect.signature(self._function)

    @cached_property
    def _parameters(self) -> Mapping[str, inspect.Parameter]:
        return self._signature.parameters

    @cached_property
    def _takes_any(self) -> bool:
        kinds = (one.kind for one in self._parameters.values())
        return inspect.Parameter.VAR_KEYWORD in kinds

    @cached_property
    def _arguments(self) -> list[str]:
        """The names of the arguments, without those that collect others."""
        collecting = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
        named = [n for n, one in self._parameters.items() if one.kind not in collecting]
        return named[1:] if named[:1] in (["self"], ["cls"]) else named

    def bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """Return the arguments by name, or raise a `TypeError` with what works instead."""
        try:
            return self._signature.bind(*args, **kwargs).arguments
        except TypeError as error:
            self._reject(kwargs, error)

    def wrong_type(self, given: dict[str, Any]) -> str | None:
        """Return a sentence about the first value of a wrong type, or None."""
        for name, value in given.items():
            parameter = self._parameters[name]
            values = value if parameter.kind is parameter.VAR_POSITIONAL else (value,)
            if value is parameter.default or parameter.kind is parameter.VAR_KEYWORD:
                continue
            for one in values:
                if not _fits(one, parameter.annotation):
                    expected = " or ".join(_described(parameter.annotation))
                    return f"{name} must be {expected}, got {_text(one)}"
        return None

    def takes(self, argument: str, value: Any) -> bool:
        """Return whether the annotation of an argument names the type of a value."""
        if argument not in self._parameters:
            return False
        kinds = filter(_is_plain, _members(self._parameters[argument].annotation))
        return any(_is_of(value, kind) for kind in kinds)

    def _reject(self, kwargs: dict[str, Any], error: TypeError) -> NoReturn:
        answers = [
            f"{self._name}() has no argument {name!r}; {self._instead(name, value)}"
            for name, value in kwargs.items()
            if name not in self._parameters
            and not (self._takes_any and not did_you_mean(name, self._arguments))
        ]
        message = f"{self._name}(): {error} (arguments: {self._described_arguments()})"
        raise TypeError(" | ".join(answers) or message) from None

    def _described_arguments(self) -> str:
        only = inspect.Parameter.KEYWORD_ONLY
        by_name = [name for name in self._arguments if self._parameters[name].kind is only]
        others = ", ".join(name for name in self._arguments if name not in by_name)
        if self._takes_any:
            by_name.append("any others")
        parts = [others, f"by name: {', '.join(by_name)}" if by_name else ""]
        return "; ".join(filter(None, parts)) or "none"

    def _instead(self, name: str, value: Any) -> str:
        fits = all(
            call.takes(argument, our_value(argument, value))
            for owner, argument in arguments_of(name, self._name)
            for call in _CALLS.get(owner, ())
            if call._takes_any or argument in call._parameters
        )
        found = instead_of(name, value if fits else ..., self._name, self._arguments)
        if found is not None:
            return f"use {found}"
        near = did_you_mean(name, self._arguments).removeprefix("; ")
        if near or self._arguments:
            return near or f"its arguments are {', '.join(self._arguments)}"
        return "it takes no arguments by name"


def check_keywords(function: Callable[..., Any], name: str, keywords: dict[str, Any]) -> None:
    """Raise a `TypeError` with what works if a function cannot be called with these keywords.

    Args:
        function: what the keywords are passed on to.
        name: the name of the call in the message.
        keywords: all arguments by name.
    """
    _Call(function, name).bind((), keywords)


def _members(annotation: Any) -> Iterator[Any]:
    """Yield the alternatives of a union."""
    if get_origin(annotation) in (Union, UnionType):
        for one in get_args(annotation):
            yield from _members(one)
    else:
        yield annotation


def _is_plain(kind: Any) -> bool:
    known = kind in _PLAIN_TYPES or kind is NoneType or kind is None
    return known or get_origin(kind) in (Literal, Callable, *_CONTAINERS)


def _fits(value: Any, annotation: Any) -> bool:
    """Return whether a value has one of the plain types; any value fits other annotations."""
    kinds = list(_members(annotation))
    return not all(map(_is_plain, kinds)) or any(_is_of(value, kind) for kind in kinds)


def _is_of(value: Any, kind: Any) -> bool:
    if get_origin(kind) is Literal:  # the function knows more about a wrong word
        return type(value) in map(type, get_args(kind))
    if get_origin(kind) is Callable:
        return callable(value)
    if get_origin(kind) in _CONTAINERS:
        return isinstance(value, _CONTAINERS[get_origin(kind)][0])
    if kind in _NUMBERS:
        return not isinstance(value, bool | str) and hasattr(type(value), _NUMBERS[kind])
    return isinstance(value, NoneType if kind is None else kind)


def _described(annotation: Any) -> Iterator[str]:
    for kind in _members(annotation):
        if get_origin(kind) is Literal:
            yield " or ".join(map(repr, get_args(kind)))
        elif get_origin(kind) is Callable:
            yield "a function"
        elif get_origin(kind) in _CONTAINERS:
            yield _CONTAINERS[get_origin(kind)][1]
        elif kind not in (None, NoneType):
            yield _PLAIN_TYPES[kind]
    if NoneType in _members(annotation):
        yield "None"


def _text(value: Any) -> str:
    text = repr(value)
    plain = isinstance(value, int | float | str | NoneType) or len(text) <= 60
    return text if plain and "\n" not in text else f"a {type(value).__name__}"
