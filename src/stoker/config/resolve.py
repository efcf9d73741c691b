"""References: ``${run.epochs}`` becomes the value, ``${model}`` the very node."""

import re
from typing import Any

from stoker.config import paths
from stoker.config.lazy import Lazy, children, rebuilt
from stoker.config.yaml_text import ConfigError, Named

_WHOLE = re.compile(r"\$\{([A-Za-z_][\w-]*(?:\.[\w-]+|\[\d+\])*)\}")


def resolved(tree: Any) -> Any:
    """A copy of a tree in which all references are followed.

    A reference to a node, a mapping or a list is that very object, so that it is built once.
    Everything else is OmegaConf's: text around references, relative ones, ``${oc.env:HOME}``.
    """
    return _Resolver(tree).value(tree, "")


def has_references(text: Any) -> bool:
    """Whether a value is a text with something to follow."""
    return isinstance(text, str) and "${" in text


class _Resolver:
    def __init__(self, tree: Any) -> None:
        self._tree = tree
        self._made: dict[int, Any] = {}
        self._on_the_way: list[str] = []
        self._omega: Any = None

    def value(self, value: Any, path: str) -> Any:
        if isinstance(value, dict | list | tuple):
            if id(value) not in self._made:
                below = iter([f"{path}.{key}" if path else str(key) for key, _ in children(value)])
                self._made[id(value)] = rebuilt(value, lambda item: self.value(item, next(below)))
            return self._made[id(value)]
        return self._followed(value, path) if has_references(value) else value

    def _followed(self, text: str, path: str) -> Any:
        whole = _WHOLE.fullmatch(text)
        if whole is None:
            return self._by_omegaconf(path)
        there = ".".join(paths.split(whole[1]))
        if there in self._on_the_way:
            circle = " → ".join([*self._on_the_way, there])
            raise ConfigError(f"'{path}' refers to itself: {circle}")
        self._on_the_way.append(there)
        try:
            return self.value(paths.get(self._tree, there), there)
        except paths.NoSuchPlaceError as error:
            raise ConfigError(f"'{path}' is {text}, but {error}") from None
        finally:
            self._on_the_way.pop()

    def _by_omegaconf(self, path: str) -> Any:
        from omegaconf import OmegaConf
        from omegaconf.errors import OmegaConfBaseException

        try:
            if self._omega is None:
                self._omega = OmegaConf.create(_as_plain(self._tree))
            found = OmegaConf.select(self._omega, path, throw_on_missing=True)
        except OmegaConfBaseException as error:
            reason = str(error).splitlines()[0]
            raise ConfigError(f"'{path}' cannot be followed: {reason}") from None
        if OmegaConf.is_config(found):
            raise ConfigError(f"'{path}' is a reference to more than one value; write it whole")
        return found.replace("${", "\\${") if isinstance(found, str) else found


def _as_plain(value: Any) -> Any:
    """What OmegaConf sees: mappings, lists and plain values."""
    if isinstance(value, Lazy):
        numbered = {str(index): _as_plain(item) for index, item in enumerate(value.args)}
        return {**numbered, **{key: _as_plain(item) for key, item in value.items()}}
    if isinstance(value, dict):
        return {key: _as_plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_as_plain(item) for item in value]
    return value.name if isinstance(value, Named) else value
