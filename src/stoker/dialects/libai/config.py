"""Build what lazy configs describe, and read the command line."""

import argparse
from collections.abc import Callable, Mapping
from functools import partial, wraps
from inspect import Parameter, signature
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, ListConfig, OmegaConf

from stoker.config.check import parameters
from stoker.config.names import UnknownNameError, locate
from stoker.core.errors import did_you_mean
from stoker.dialects.libai.lazy import LazyCall, LazyConfig, YamlName, target_name

__all__ = ["LazyCall", "LazyConfig"]

_OWN = ("_target_", "_recursive_")


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
    tree = cfg if OmegaConf.is_config(cfg) else OmegaConf.create(cfg, flags={"allow_objects": True})
    for key in keys:
        value = OmegaConf.select(tree, key, default=_NOTHING)
        if value is not _NOTHING:
            return value
    return default


_NOTHING = object()
_SHIPPED = Path(__file__).parent / "configs"


def get_config(config_path: str) -> Any:
    """Return a built-in config, such as "common/train.py", or one of the folder ``configs``."""
    own = Path("configs") / config_path
    if own.is_file() and not (_SHIPPED / config_path).is_file():
        return LazyConfig.load(own)
    if not (_SHIPPED / config_path).is_file():
        there = [str(path.relative_to(_SHIPPED)) for path in sorted(_SHIPPED.rglob("*.py"))]
        near = did_you_mean(config_path, there)
        raise ValueError(f"there is no config {config_path!r}{near} (configs: {', '.join(there)})")
    return LazyConfig.load(_SHIPPED / config_path)


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
