"""Lazy configs on OmegaConf: calls that are described, changed, saved, and made later."""

import builtins
import logging
import math
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import yaml
from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from stoker.config import ConfigError
from stoker.config.names import importing_from, name_of
from stoker.config.override import value_of
from stoker.config.trust import Trust
from stoker.core.errors import did_you_mean, did_you_mean_path
from stoker.storage import write_atomic

_log = logging.getLogger("libai.config")
_OBJECTS = {"allow_objects": True}
_WIDTH = 88


class LazyCall:
    """Describe a call: ``LazyCall(Net)(width=64)`` is a `DictConfig` with the key ``_target_``.

    Args:
        target: A callable, its dotted name, or a node that builds a callable.
    """

    def __init__(self, target: Any) -> None:
        if not (callable(target) or isinstance(target, str | Mapping | DictConfig)):
            raise TypeError(f"LazyCall() describes a call, but {target!r} cannot be called")
        self._target = target

    def __call__(self, **kwargs: Any) -> DictConfig:
        """Return the node."""
        try:
            node = DictConfig(dict(kwargs, _target_=self._target), flags=_OBJECTS)
        except OmegaConfBaseException:  # as for the types of containers
            node = DictConfig(kwargs, flags=_OBJECTS)
        if isinstance(self._target, type) and node.get("_target_") is not self._target:
            node["_target_"] = name_of(self._target)  # it holds dataclasses as sections
        return node


class YamlName(str):
    """The target of a call in a YAML file, which may only name what the allow-list names."""

    __slots__ = ("trust",)
    trust: Trust

    def __copy__(self) -> "YamlName":
        return self

    def __deepcopy__(self, memo: Any) -> "YamlName":
        return self


class OverrideError(ConfigError, KeyError):
    """An override whose path does not exist."""

    __str__ = Exception.__str__


class LazyConfig:
    """Read, change and write configs."""

    @staticmethod
    def load(
        filename: str | Path,
        keys: str | tuple[str, ...] | None = None,
        *,
        allow: Iterable[str] = (),
    ) -> Any:
        """Load a .py, .yaml or .yml file, or only the given ``keys`` of it.

        A Python file is executed. A YAML file may name what is in torch, torchmetrics, stoker and
        modules of its own folder, and what the prefixes in ``allow`` name.
        """
        path = Path(filename)
        if path.suffix not in (".py", ".yaml", ".yml"):
            raise ConfigError(f"'{path}' ends in '{path.suffix}', expected .py, .yaml or .yml")
        if not path.is_file():
            raise ConfigError(f"there is no config '{path}'{did_you_mean_path(path)}")
        found = vars(_executed(path)) if path.suffix == ".py" else _read_yaml(path, allow)
        if keys is None:
            return _configs_in(found) if path.suffix == ".py" else found
        for key in (keys,) if isinstance(keys, str) else keys:
            if key not in found:
                names = ", ".join(name for name in found if not str(name).startswith("_"))
                raise ConfigError(f"'{filename}' has no {key!r} (keys: {names})")
        if isinstance(keys, str):
            return as_config(found[keys])
        return tuple(as_config(found[key]) for key in keys)

    @staticmethod
    def load_rel(filename: str, keys: str | tuple[str, ...] | None = None) -> Any:
        """Load a file relative to the calling file."""
        caller = Path(sys._getframe(1).f_code.co_filename)
        return LazyConfig.load(caller.parent / filename, keys)

    @staticmethod
    def apply_overrides(cfg: Any, overrides: Iterable[str]) -> Any:
        """Apply overrides such as ``["train.log_period=5"]`` to the config, and return it.

        A key may be new, unless it is at the top; ``+key=value`` adds a key there.
        """
        for override in overrides:
            path, equals, text = override.partition("=")
            if not equals or path.startswith("~"):
                raise ConfigError(f"'{override}' is not an override: expected key=value")
            _override(cfg, path.lstrip("+"), value_of(text), new=path.startswith("+"))
        return cfg

    @staticmethod
    def save(cfg: Any, filename: str | Path) -> None:
        """Write the config as YAML, which `load` reads back.

        If it has objects that YAML cannot express, the file is only for reading, and a pickle of
        the config is beside it.
        """
        tree = _named(OmegaConf.to_container(cfg, resolve=False))
        text, objects = _dumped(tree)
        if objects:
            _log.warning(f"'{filename}' cannot be loaded again: the config has {objects[0]}")
            _pickle(cfg, Path(f"{filename}.pkl"))
        write_atomic(Path(filename), text)

    @staticmethod
    def to_py(cfg: Any, prefix: str = "cfg.") -> str:
        """Return the config as readable Python assignments."""
        tree: Any = OmegaConf.to_container(cfg, resolve=True)
        return "".join(f"{line}\n" for line in _assignments(tree, prefix))


def as_config(value: Any) -> Any:
    """Return a dict as a `DictConfig` that can hold any object, other values unchanged."""
    return DictConfig(value, flags=_OBJECTS) if isinstance(value, dict) else value


def _configs_in(names: Mapping[str, Any]) -> DictConfig:
    """Return the public names of a config file that are configs."""
    found = {
        name: as_config(value)
        for name, value in names.items()
        if isinstance(value, DictConfig | ListConfig | dict) and not name.startswith("_")
    }
    return DictConfig(found, flags=_OBJECTS)


# Python files


def _executed(path: Path) -> ModuleType:
    """Execute a config file; each of its relative imports executes that file again.

    Only the import statements of the file itself are different, so that nothing has to be restored
    if it fails.
    """
    module = ModuleType(path.stem)
    module.__file__ = str(path)
    vars(module)["__builtins__"] = {**vars(builtins), "__import__": _import}
    with importing_from([path.parent.resolve(), Path.cwd()]):
        exec(compile(path.read_text(encoding="utf-8"), str(path), "exec"), vars(module))
    return module


def _import(
    name: str, names: Any = None, scope: Any = None, fromlist: Any = (), level: int = 0
) -> Any:
    if level == 0:
        return __import__(name, names, scope, fromlist, level)
    folder = Path(names["__file__"]).parents[level - 1]
    path = folder.joinpath(*name.split(".")).with_suffix(".py")
    if not path.is_file():
        statement = f"from {'.' * level}{name} import {', '.join(fromlist)}"
        raise ImportError(f"'{names['__file__']}': '{statement}' needs a file '{path}'")
    module = _executed(path)
    for one in fromlist or ():
        if hasattr(module, one):
            setattr(module, one, as_config(getattr(module, one)))
    return module


# YAML files


def _read_yaml(path: Path, allow: Iterable[str]) -> Any:
    tree = yaml.safe_load(path.read_text(encoding="utf-8"))
    if not isinstance(tree, dict | list):
        raise ConfigError(f"'{path}' is {tree!r}, expected a mapping such as 'model: …'")
    cfg = OmegaConf.create(tree, flags=_OBJECTS)
    folder = path.resolve().parent
    folders = [folder, Path.cwd()] if folder.is_relative_to(Path.cwd()) else [folder]
    trust = Trust(folders, list(allow))
    for node in _nodes(cfg):
        if isinstance(target := node.get("_target_"), str):
            name = YamlName(target)
            name.trust = trust
            node["_target_"] = name
    return cfg


def _nodes(cfg: Any) -> Iterator[DictConfig]:
    """Yield all mappings in a config, without following references."""
    if isinstance(cfg, DictConfig):
        yield cfg
    content = cfg._content  # a str if it is a reference
    for child in content.values() if isinstance(content, dict) else content:
        if isinstance(child, DictConfig | ListConfig) and isinstance(child._content, dict | list):
            yield from _nodes(child)


# Overrides


def _override(cfg: Any, path: str, value: Any, *, new: bool) -> None:
    parts = path.split(".")
    for count in range(1, len(parts)):
        prefix = ".".join(parts[:count])
        found = OmegaConf.select(cfg, prefix)
        if found is None:
            break
        if not OmegaConf.is_config(found):
            raise OverrideError(f"'{path}' does not exist: '{prefix}' is {found!r}")
    if parts[0] not in cfg and not new:
        near = did_you_mean(parts[0], map(str, cfg))
        raise OverrideError(f"'{path}' does not exist: the config has no '{parts[0]}'{near}")
    OmegaConf.update(cfg, path, value, merge=True, force_add=True)


# Writing


def _named(value: Any) -> Any:
    """Return a copy of a plain tree in which targets are names."""
    if isinstance(value, dict):
        return {key: _named(one) for key, one in value.items() if key != "_target_"} | (
            {"_target_": target_name(value["_target_"])} if "_target_" in value else {}
        )
    if isinstance(value, list):
        return [_named(one) for one in value]
    return value


def target_name(target: Any) -> Any:
    """Return a target as a dotted name; a node, and an object without a name, stay as they are."""
    if isinstance(target, str):
        return str(target)
    if isinstance(target, dict):
        return _named(target)
    return name_of(target) if hasattr(target, "__qualname__") else target


def _dumped(tree: Any) -> tuple[str, list[str]]:
    """Return a tree as YAML, and the objects in it, which are only shown."""
    objects: list[str] = []

    class _Dumper(yaml.SafeDumper):
        def show(self, value: Any) -> Any:
            objects.append(repr(value))
            return self.represent_str(objects[-1])

    _Dumper.add_multi_representer(object, _Dumper.show)
    text = yaml.dump(tree, Dumper=_Dumper, default_flow_style=None, allow_unicode=True, width=9999)
    return text, objects


def _pickle(cfg: Any, path: Path) -> None:
    try:
        import cloudpickle

        data = cloudpickle.dumps(cfg)
    except Exception as error:  # objects can fail in any way
        _log.warning(f"'{path}' was not written: {type(error).__name__}: {error}")
        return
    write_atomic(path, data)


def _assignments(tree: Mapping[str, Any], prefix: str) -> Iterator[str]:
    for key, value in sorted(tree.items()):
        if isinstance(value, dict) and "_target_" not in value:
            yield from _assignments(value, f"{prefix}{key}.")
        else:
            head = f"{prefix}{key} = "
            yield head + _source(value, _WIDTH - len(head))


def _source(value: Any, room: float = math.inf, indent: int = 0) -> str:
    """Return a value as Python: in one line if there is room, or else each item in its own."""
    if isinstance(value, list):
        opening, items, closing = "[", [("", one) for one in value], "]"
    elif not isinstance(value, dict):
        return f'"{value}"' if isinstance(value, str) and '"' not in value else repr(value)
    elif "_target_" not in value:
        opening, closing = "{", "}"
        items = [(f"{_source(key)}: ", value[key]) for key in sorted(value)]
    else:
        target = target_name(value["_target_"])
        opening, closing = f"{target if isinstance(target, str) else _source(target)}(", ")"
        items = [(f"{key}=", value[key]) for key in sorted(value) if key != "_target_"]
    line = opening + ", ".join(name + _source(item) for name, item in items) + closing
    if len(line) <= room:
        return line
    start = " " * (indent + 4)
    lines = "".join(
        f"{start}{name}{_source(item, _WIDTH - len(start + name) - 1, indent + 4)},\n"
        for name, item in items
    )
    return f"{opening}\n{lines}{' ' * indent}{closing}"
