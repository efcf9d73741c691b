"""`L`: describe a call now and make it later."""

import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

from stoker.config.names import name_of
from stoker.core.errors import did_you_mean


class Section(dict[str, Any]):
    """A mapping that records where each of its values was written.

    Items are also attributes: ``section.width = 128``.
    """

    __slots__ = ("origins", "where")
    _own: ClassVar[tuple[str, ...]] = __slots__

    def __init__(self, values: Mapping[str, Any] | None = None, where: str = "") -> None:
        super().__init__(values or {})
        self.where = where
        self.origins: dict[str, str] = {}

    def origin(self, key: str) -> str:
        """Return where the value of ``key`` was written, or else where the section was."""
        return self.origins.get(key) or self.where

    def __getattr__(self, name: str) -> Any:
        if name in self:
            return self[name]
        if name in self._own or name.startswith("__"):
            raise AttributeError(name)  # Python's own lookups, such as those of copy
        raise AttributeError(self._lacks(name))

    def __setattr__(self, name: str, value: Any) -> None:
        if name in self._own:
            object.__setattr__(self, name, value)
        else:
            self[name] = value
            self.origins[name] = _caller(1)

    def __delattr__(self, name: str) -> None:
        if name not in self:
            raise AttributeError(self._lacks(name))
        del self[name]

    def _lacks(self, name: str) -> str:
        return (
            f"the section of {self.where or 'a config'} has no {name!r}{did_you_mean(name, self)}"
        )


class Lazy(Section):
    """A call that has not been made yet: a target, its arguments, and where it was written.

    Keyword arguments are items and attributes, and can be changed, added and deleted until the
    node is built::

        model = L(Net)(width=64)
        model.width = 128

    Args:
        target: the callable, or its dotted name.
        args: the positional arguments.
        kwargs: the keyword arguments.
        where: "file:line".
    """

    __slots__ = ("args", "made_by", "target")
    _own = ("args", "made_by", "origins", "target", "where")

    def __init__(
        self,
        target: str | Callable[..., Any],
        args: list[Any] | tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
        where: str = "",
    ) -> None:
        super().__init__(kwargs, where)
        if not isinstance(target, str) and not callable(target):
            raise TypeError(f"L() describes a call, but {target!r} cannot be called")
        self.target = target if isinstance(target, str) else name_of(target)
        self.made_by = None if isinstance(target, str) else target
        self.args = list(args)

    def _lacks(self, name: str) -> str:
        return f"{self!r} has no argument {name!r}"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Lazy):
            return False
        return self.target == other.target and self.args == other.args and dict.__eq__(self, other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        given = [repr(value) for value in self.args]
        given += [f"{key}={value!r}" for key, value in self.items()]
        return f"L({self.target})({', '.join(given)})"


UNKNOWN = object()
"""Stands for a call whose short name is unknown, which is a fault of the config."""


class L:
    """Describe a call to ``target``: ``L(Net)(width=64)`` is a `Lazy` node, not a ``Net``."""

    def __init__(self, target: str | Callable[..., Any]) -> None:
        self._target = target

    def __call__(self, *args: Any, **kwargs: Any) -> Lazy:
        """Return the node."""
        return Lazy(self._target, args, kwargs, _caller(1))


def children(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the items of a container with their keys; positional arguments are numbered."""
    if isinstance(value, Lazy):
        yield from ((str(index), item) for index, item in enumerate(value.args))
    if isinstance(value, dict):
        yield from value.items()
    elif isinstance(value, list | tuple):
        yield from ((str(index), item) for index, item in enumerate(value))


def rebuilt(value: Any, change: Callable[[Any], Any]) -> Any:
    """Return a copy of a container with ``change`` applied to each item; other values unchanged."""
    if isinstance(value, Lazy):
        target = value.made_by if value.made_by is not None else value.target
        args = [change(item) for item in value.args]  # first, in the order of `children`
        kwargs = {key: change(item) for key, item in value.items()}
        node = Lazy(target, args, kwargs, value.where)
        node.target, node.origins = value.target, dict(value.origins)
        return node
    if isinstance(value, dict):
        section = Section({k: change(v) for k, v in value.items()}, getattr(value, "where", ""))
        section.origins = dict(getattr(value, "origins", {}))
        return section
    if isinstance(value, list | tuple):
        return type(value)(change(item) for item in value)
    return value


def copied(value: Any) -> Any:
    """Return a deep copy in which a node used in two places stays one object."""
    seen: dict[int, Any] = {}

    def copy(part: Any) -> Any:
        if isinstance(part, dict | list | tuple):
            if id(part) not in seen:
                seen[id(part)] = rebuilt(part, copy)
            return seen[id(part)]
        return part

    return copy(value)


def _caller(depth: int) -> str:
    """Return the "file:line" of the code that called our caller."""
    frame = sys._getframe(depth + 1)
    return f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"
