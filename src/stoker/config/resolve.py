"""Resolve references: ``${run.epochs}`` is a value, ``${model}`` the same node."""

import re
from typing import Any

from stoker.config import paths
from stoker.config.lazy import Lazy, children, rebuilt
from stoker.config.yaml_text import ConfigError, Named

_REFERENCE = re.compile(r"\$\{([A-Za-z_][\w-]*(?:\.[\w-]+|\[\d+\])*)\}")


def resolved(tree: Any) -> Any:
    """Return a copy of a tree with all references resolved.

    A reference to a node, a mapping or a list becomes the same object, so that it is built once.
    OmegaConf resolves the others: references inside text, relative ones, ``${oc.env:HOME}``.
    """
    return _Resolver(tree).value(tree, "")


def has_references(text: Any) -> bool:
    """Return whether a value is a string that contains a reference."""
    return isinstance(text, str) and "${" in text


class _Resolver:
    def __init__(self, tree: Any) -> None:
        self._tree = tree
        self._made: dict[int, Any] = {}
        self._resolving: list[str] = []
        self._omega: Any = None

    def value(self, value: Any, path: str) -> Any:
        if isinstance(value, dict | list | tuple):
            if id(value) not in self._made:
                below = iter([f"{path}.{key}" if path else str(key) for key, _ in children(value)])
                self._made[id(value)] = rebuilt(value, lambda item: self.value(item, next(below)))
            return self._made[id(value)]
        return self._followed(value, path) if has_references(value) else value

    def _followed(self, text: str, path: str) -> Any:
        match = _REFERENCE.fullmatch(text)
        if match is None:
            return self._by_omegaconf(path)
        target = ".".join(paths.split(match[1]))
        if target in self._resolving:
            circle = " → ".join([*self._resolving, target])
            raise ConfigError(f"'{path}' refers to itself: {circle}")
        self._resolving.append(target)
        try:
            return self.value(paths.get(self._tree, target), target)
        except paths.NoSuchPlaceError as error:
            raise ConfigError(f"'{path}' is {text}, but {error}") from None
        finally:
            self._resolving.pop()

    def _by_omegaconf(self, path: str) -> Any:
        from omegaconf import OmegaConf
        from omegaconf.errors import OmegaConfBaseException

        try:
            if self._omega is None:
                self._omega = OmegaConf.create(_as_plain(self._tree))
            found = OmegaConf.select(self._omega, path, throw_on_missing=True)
        except OmegaConfBaseException as error:
            reason = str(error).splitlines()[0]
            raise ConfigError(f"'{path}' cannot be resolved: {reason}") from None
        if OmegaConf.is_config(found):
            raise ConfigError(f"'{path}' refers to a mapping or list inside text, expected a value")
        return found.replace("${", "\\${") if isinstance(found, str) else found


def _as_plain(value: Any) -> Any:
    """Return plain mappings, lists and values for OmegaConf."""
    if isinstance(value, Lazy):
        numbered = {str(index): _as_plain(item) for index, item in enumerate(value.args)}
        return {**numbered, **{key: _as_plain(item) for key, item in value.items()}}
    if isinstance(value, dict):
        return {key: _as_plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_as_plain(item) for item in value]
    return value.name if isinstance(value, Named) else value
