"""Resolve references: ``${run.epochs}`` is a value, ``${model}`` the same node."""

import os
import re
from typing import Any

from stoker.config import paths
from stoker.config.lazy import children, rebuilt
from stoker.config.yaml_text import Named, check_size
from stoker.core.errors import ConfigError

_REFERENCE = re.compile(r"(\.*)([A-Za-z_][\w-]*(?:\.[\w-]+|\[\d+\])*)")
_INNERMOST = re.compile(r"(?<!\\)\$\{([^${}]*)\}")
_UNCLOSED = re.compile(r"(?<!\\)\$\{")
_LONGEST = 10_000


def resolved(tree: Any, faults: list[str]) -> Any:
    """Return a copy of a tree with all references resolved; append those that fail to ``faults``.

    A reference to a node, a mapping or a list becomes the same object, so that it is built once.
    Inside text it becomes the text of a value. References can be relative, ``${.width}``, and name
    a variable of the environment, ``${oc.env:HOME}``, or another resolver of OmegaConf.
    """
    try:
        found = _Resolver(tree, faults).value(tree, "")
    except RecursionError:
        raise ConfigError("the references of the config lead through too many others") from None
    check_size(found, "the config with its references resolved")
    return found


def has_references(text: Any) -> bool:
    """Return whether a value is a string that contains a reference."""
    return isinstance(text, str) and "${" in text


class _Resolver:
    def __init__(self, tree: Any, faults: list[str]) -> None:
        self._tree, self._faults = tree, faults
        self._made: dict[int, Any] = {}
        self._texts: dict[str, Any] = {}
        self._resolving: list[str] = []

    def value(self, value: Any, path: str) -> Any:
        if isinstance(value, dict | list | tuple):
            if id(value) not in self._made:
                below = iter([f"{path}.{key}" if path else str(key) for key, _ in children(value)])
                self._made[id(value)] = rebuilt(value, lambda item: self.value(item, next(below)))
            return self._made[id(value)]
        if not has_references(value):
            return value
        if path not in self._texts:
            try:
                self._texts[path] = self._text(value, path)
            except ConfigError as error:
                if self._resolving:
                    raise  # the text that refers to this one fails, too
                self._faults += error.faults
                return value
        return self._texts[path]

    def _text(self, text: str, path: str) -> Any:
        """Replace the references of a text, innermost first."""
        written = text
        while (match := _INNERMOST.search(text)) is not None:
            alone = match.span() == (0, len(text))
            found = self._referred(match[1], written, path, alone)
            if alone:
                return found
            if isinstance(found, dict | list | tuple | Named):
                raise ConfigError(
                    f"'{path}' refers to a mapping or list inside text, expected a value"
                )
            text = f"{text[: match.start()]}{found}{text[match.end() :]}"
            if len(text) > _LONGEST:
                raise ConfigError(f"'{path}' is longer than {_LONGEST} characters")
        if _UNCLOSED.search(text):
            raise ConfigError(f"'{path}' cannot be resolved: '${{' is not closed in {written!r}")
        return text

    def _referred(self, inner: str, written: str, path: str, alone: bool) -> Any:
        match = _REFERENCE.fullmatch(inner)
        if match is None:
            found = _from_resolver(inner, path)
            return found.replace("${", "\\${") if isinstance(found, str) else found
        above = path.split(".")[: -len(match[1])] if match[1] else []
        target = ".".join([*above, *paths.split(match[2])])
        if target in self._resolving:
            circle = " → ".join([*self._resolving, target])
            raise ConfigError(f"'{path}' refers to itself: {circle}")
        self._resolving.append(target)
        try:
            return self.value(paths.get(self._tree, target), target)
        except paths.NoSuchPlaceError as error:
            problem = f"is {written}, but" if alone else "cannot be resolved:"
            raise ConfigError(f"'{path}' {problem} {error}") from None
        finally:
            self._resolving.pop()


def _from_resolver(inner: str, path: str) -> Any:
    """Return the value of ``oc.env:NAME``, ``oc.decode:…``, or a resolver that code registered."""
    name, colon, argument = inner.partition(":")
    if name == "oc.env" and colon:
        variable, comma, default = argument.partition(",")
        found = os.environ.get(variable.strip())
        if found is None and not comma:
            raise ConfigError(
                f"'{path}' cannot be resolved: there is no environment variable '{variable}'"
            )
        text = default.strip()
        return found if found is not None else None if text == "null" else text.strip("'\"")
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    known = OmegaConf.has_resolver(name) and (name == "oc.decode" or not name.startswith("oc."))
    if not colon or not known:
        raise ConfigError(f"'{path}' cannot be resolved: '${{{inner}}}' is not a reference")
    try:
        return OmegaConf.to_container(OmegaConf.create({"it": f"${{{inner}}}"}), resolve=True)["it"]  # type: ignore[index, call-overload]
    except OmegaConfBaseException as error:
        reason = str(error).splitlines()[0]
        raise ConfigError(f"'{path}' cannot be resolved: {reason}") from None
