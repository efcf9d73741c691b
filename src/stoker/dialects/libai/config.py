"""Lazy configs on OmegaConf: describe calls, change, save and load them, and make them.

Also the command line of a script, which names a config and overrides.
"""

import argparse
import builtins
import logging
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial, wraps
from inspect import Parameter, signature
from pathlib import Path
from types import ModuleType
from typing import Any

import yaml
from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from stoker.config import ConfigError
from stoker.config.check import parameters
from stoker.config.names import UnknownNameError, importing_from, locate, name_of
from stoker.config.override import value_of
from stoker.config.trust import Trust
from stoker.core.errors import did_you_mean, did_you_mean_path
from stoker.storage import write_atomic

_log = logging.getLogger("libai.config")
_OBJECTS = {"allow_objects": True}
_OWN = ("_target_", "_recursive_")
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


# Making the calls


def instantiate(cfg: Any, **kwargs: Any) -> Any:
    """Make the call that a config describes, and first those in its arguments.

    A list becomes a list of what its items describe. Anything else, also a mapping without
    ``_target_``, is returned as it is.

    Args:
        cfg: A node, a list of nodes, or any other value.
        kwargs: Arguments that override those of the node. ``_recursive_=False`` passes inner nodes
            as they are.
    """
    recursive = kwargs.pop("_recursive_", True)
    if kwargs and not _is_node(cfg):
        raise TypeError(
            f"instantiate() got arguments for a {type(cfg).__name__}, expected a LazyCall"
        )
    return _build(cfg, recursive, kwargs)


def _is_node(cfg: Any) -> bool:
    return isinstance(cfg, dict | DictConfig) and "_target_" in cfg


def _build(cfg: Any, recursive: bool, overrides: Mapping[str, Any]) -> Any:
    if isinstance(cfg, list | ListConfig):
        return [_build(item, recursive, {}) for item in cfg]
    if not _is_node(cfg):
        return cfg
    recursive = cfg.get("_recursive_", recursive)
    if not isinstance(recursive, bool):
        raise TypeError(f"_recursive_ is {recursive!r}, expected True or False")
    target = target_of(cfg)
    arguments = {**{key: cfg[key] for key in cfg if key not in _OWN}, **overrides}
    if recursive:
        arguments = {key: _build(value, True, {}) for key, value in arguments.items()}
    for key, value in arguments.items():
        arguments[key] = list(value) if isinstance(value, ListConfig) else value
    if isinstance(cfg["_target_"], YamlName):
        _check_arguments(cfg["_target_"], target, arguments)
    try:
        return target(**arguments)
    except Exception as error:
        error.add_note(f"while {target_name(cfg['_target_'])} was built")
        raise


def target_of(cfg: Any) -> Any:
    """Return the callable of a node."""
    target = cfg["_target_"]
    if isinstance(target, YamlName):
        try:
            target = target.trust.find(str(target))
        except UnknownNameError as error:
            message = str(error).replace("add --allow", "pass allow= to LazyConfig.load with")
            raise UnknownNameError(message) from None
    elif isinstance(target, str):
        target = locate(target)
    elif not callable(target):
        target = instantiate(target)
    if not callable(target):
        raise TypeError(f"_target_ is {target!r}, which cannot be called")
    return target


def _check_arguments(name: YamlName, target: Any, arguments: Mapping[str, Any]) -> None:
    for key, value in arguments.items():
        if reason := name.trust.refused_argument(target, str(name), key, value):
            raise UnknownNameError(reason)


def accepts(cfg: Any, *names: str) -> list[str]:
    """Return those arguments of these names that the target of a node takes."""
    taken = parameters(target_of(cfg)) or {}
    open_ended = any(one.kind is Parameter.VAR_KEYWORD for one in taken.values())
    return [name for name in names if name in taken or open_ended]


def try_get_key(cfg: Any, *keys: str, default: Any = None) -> Any:
    """Return the value of the first dotted key that the config has, or the default."""
    tree = cfg if OmegaConf.is_config(cfg) else OmegaConf.create(cfg, flags=_OBJECTS)
    for key in keys:
        value = OmegaConf.select(tree, key, default=_NOTHING)
        if value is not _NOTHING:
            return value
    return default


_NOTHING = object()
_SHIPPED = Path(__file__).parent / "configs"


def get_config(config_path: str) -> Any:
    """Return a built-in config, such as "common/train.py", or one of the folder ``configs``."""
    for path in (_SHIPPED / config_path, Path("configs") / config_path):
        if path.is_file():
            return LazyConfig.load(path)
    there = [str(path.relative_to(_SHIPPED)) for path in sorted(_SHIPPED.rglob("*.py"))]
    near = did_you_mean(config_path, there)
    raise ValueError(f"there is no config {config_path!r}{near} (configs: {', '.join(there)})")


def configurable(init_func: Any = None, *, from_config: Callable[..., Any] | None = None) -> Any:
    """Let a class or function be called with a config, which ``from_config`` turns to arguments.

    ``@configurable`` on ``__init__`` uses the class method ``from_config(cls, cfg)``;
    ``@configurable(from_config=…)`` decorates a function.
    """
    if init_func is not None and getattr(init_func, "__name__", "") != "__init__":
        raise TypeError("@configurable decorates __init__, or takes from_config= for others")
    if init_func is None:
        return partial(_configurable, from_config=from_config) if from_config else configurable
    return _configurable(init_func)


def _configurable(function: Callable[..., Any], from_config: Any = None) -> Callable[..., Any]:
    """Decorate ``__init__``, or a function with its ``from_config``."""

    @wraps(function)
    def called(*args: Any, **kwargs: Any) -> Any:
        convert, owner = from_config, args[: from_config is None]
        if owner and (convert := getattr(type(owner[0]), "from_config", None)) is None:
            raise AttributeError(f"{type(owner[0]).__name__} has no class method from_config(cfg)")
        rest = args[len(owner) :]
        if isinstance(rest[0] if rest else kwargs.get("cfg"), DictConfig):
            return function(*owner, **_explicit(convert, rest, kwargs))
        return function(*args, **kwargs)

    called.__dict__["from_config"] = from_config
    return called


def _explicit(from_config: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments from a config, and those that ``from_config`` does not take."""
    taken = signature(from_config).parameters
    if next(iter(taken), None) != "cfg":
        raise TypeError(f"{from_config.__qualname__} must take 'cfg' as its first argument")
    if any(one.kind in (one.VAR_KEYWORD, one.VAR_POSITIONAL) for one in taken.values()):
        return dict(from_config(*args, **kwargs))
    passed = {name: value for name, value in kwargs.items() if name in taken}
    others = {name: value for name, value in kwargs.items() if name not in taken}
    return {**from_config(*args, **passed), **others}


def default_argument_parser(epilog: str | None = None) -> argparse.ArgumentParser:
    """Return a parser with the flags that `default_setup` reads."""
    parser = argparse.ArgumentParser(epilog=epilog)
    parser.add_argument("--config-file", default="", metavar="FILE", help="a lazy config")
    parser.add_argument("--resume", action="store_true", help="resume from the last checkpoint")
    parser.add_argument("--eval-only", action="store_true", help="only evaluate")
    parser.add_argument("--fast-dev-run", action="store_true", help="20 iterations, to try it out")
    parser.add_argument("opts", nargs=argparse.REMAINDER, help="changes: train.log_period=5 …")
    return parser
